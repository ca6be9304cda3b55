//! Pictures in the terminal: by the protocol of kitty, iTerm2 or sixel where the terminal has one, else with
//! half-blocks, two pixels per cell.
//!
//! ```text
//! terminal, tmux ─ ask ─▶ detect ─▶ PictureSupport ─┐
//! file ─ decode (bounded) ─ scale ─ encode ─────────┴─▶ Picture ─ draw ─▶ cells of a frame
//! ```
//! Decoding and encoding run on a blocking thread, once per file and size. Drawing only copies cells.

pub mod ask;
pub mod detect;
pub mod draw;
pub mod encode;

use crate::cockpit::glyphs::Glyphs;
use crate::theme::Colours;
use crate::untrusted::file;
use image::RgbImage;
use ratatui::layout::Size;
use ratatui_image::protocol::Protocol;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A way to show pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PictureKind {
    /// The graphics protocol of kitty, with Unicode placeholders.
    Kitty,
    /// Inline images of iTerm2.
    ITerm2,
    /// Sixel graphics.
    Sixel,
    /// Two pixels per cell, in colour.
    HalfBlocks,
    /// Characters whose ink grows with the brightness, for terminals without enough colours or glyphs.
    Shades,
}

impl PictureKind {
    const NAMES: [(&str, Self); 5] = [
        ("kitty", Self::Kitty),
        ("iterm2", Self::ITerm2),
        ("sixel", Self::Sixel),
        ("halfblocks", Self::HalfBlocks),
        ("shades", Self::Shades),
    ];

    /// Returns the kind of this name, as in the variable `DOWNSHIFT_PICTURES`; `None` means to ask the terminal.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, kind)| kind)
    }

    /// Reports whether the terminal draws the pixels itself.
    #[must_use]
    pub fn has_pixels(self) -> bool {
        matches!(self, Self::Kitty | Self::ITerm2 | Self::Sixel)
    }
}

/// Returns the kind that needs no question to the terminal: the one that `DOWNSHIFT_PICTURES` or the preferences name,
/// or the one that its colours and glyphs allow. `auto` in the variable overrides the preferences.
pub fn choose_kind(
    variable: impl Fn(&str) -> Option<String>,
    preferred: Option<&str>,
    colours: Colours,
    glyphs: Glyphs,
) -> Option<PictureKind> {
    let named = variable("DOWNSHIFT_PICTURES").filter(|name| !name.is_empty());
    let forced = named.as_deref().or(preferred).and_then(PictureKind::parse);
    let is_poor = glyphs == Glyphs::Ascii || matches!(colours, Colours::Sixteen | Colours::None);
    forced
        .or(is_poor.then_some(PictureKind::Shades))
        .or((!ask::may_have_pixels(variable)).then_some(PictureKind::HalfBlocks))
}

/// How the terminal shows pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PictureSupport {
    /// The kind.
    pub kind: PictureKind,
    /// Width and height of a cell in pixels.
    pub cell: (u16, u16),
    /// Whether tmux passes the bytes on to the terminal around it.
    pub through_tmux: bool,
}

impl PictureSupport {
    /// Returns the support of a kind that needs no pixels.
    #[must_use]
    pub fn of_cells(kind: PictureKind) -> Self {
        Self { kind, cell: USUAL_CELL, through_tmux: false }
    }
}

/// Size of a cell where the terminal does not report it, in pixels.
pub const USUAL_CELL: (u16, u16) = (10, 20);

/// A picture file, and the room for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PictureOrder {
    /// The file.
    pub path: PathBuf,
    /// When it was written, Unix milliseconds. A file that is written again is another picture.
    pub time_ms: i64,
    /// Columns and rows for the picture.
    pub room: (u16, u16),
    /// How the terminal shows it.
    pub support: PictureSupport,
}

/// A picture, scaled and encoded for the terminal.
#[derive(Clone)]
pub struct Picture {
    /// Width and height of the file's picture in pixels.
    pub source: (u32, u32),
    /// The picture with two pixels per cell, one above the other.
    pub pixels: RgbImage,
    /// The picture for a terminal that draws pixels.
    pub encoded: Option<Protocol>,
    /// Bytes of that.
    pub encoded_bytes: usize,
}

impl Picture {
    /// Returns its size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pixels.as_raw().len() + self.encoded_bytes
    }

    /// Returns its size in cells, as drawn with half-blocks.
    #[must_use]
    pub fn cells(&self) -> Size {
        let side = |pixels: u32| u16::try_from(pixels).unwrap_or(u16::MAX);
        Size::new(side(self.pixels.width()), side(self.pixels.height().div_ceil(2)))
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Picture").field("source", &self.source).finish_non_exhaustive()
    }
}

/// A shared [`Picture`]; equal only to itself.
#[derive(Debug, Clone)]
pub struct PictureBox(pub Arc<Picture>);

impl PartialEq for PictureBox {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The reason why a picture is not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The file cannot be read; holds the error.
    #[error("{0}")]
    Unread(String),
    /// The file is not a picture, or too large; holds the decoder's error.
    #[error("not a PNG or JPEG picture that can be shown: {0}")]
    Undecodable(String),
    /// The picture cannot be sent to the terminal; holds the encoder's error.
    #[error("the picture cannot be encoded for this terminal: {0}")]
    Unencodable(String),
}

impl From<file::ReadError> for PictureError {
    fn from(error: file::ReadError) -> Self {
        Self::Unread(error.to_string())
    }
}
