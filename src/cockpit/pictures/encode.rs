//! Decodes picture files, which may come from anywhere, and encodes them for the terminal.

use super::{Picture, PictureError, PictureKind, PictureOrder, PictureSupport};
use crate::untrusted::file::{self, Limit};
use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageReader, Limits, RgbImage};
use ratatui::layout::Size;
use ratatui_image::protocol::Protocol;
use ratatui_image::protocol::{iterm2::Iterm2, kitty::Kitty, sixel::Sixel};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Cursor;

/// Maximum width and height of a picture in pixels.
const MAX_SIDE: u32 = 8192;
/// Maximum memory that a decoder may allocate.
const MAX_DECODED: u64 = 256 << 20;

/// Reads, scales and encodes a picture.
///
/// # Errors
/// Returns an error when the file cannot be read, is not a picture, or exceeds a limit.
pub fn make_picture(order: &PictureOrder) -> Result<Picture, PictureError> {
    let bytes = file::read(&order.path, Limit::Picture)?;
    encode(&decode(bytes)?, order)
}

fn decode(bytes: Vec<u8>) -> Result<RgbImage, PictureError> {
    let undecodable = |error: &dyn std::fmt::Display| PictureError::Undecodable(error.to_string());
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| undecodable(&error))?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let image = reader.decode().map_err(|error| undecodable(&error))?;
    Ok(if image.color().has_alpha() { lay_on_white(&image) } else { image.into_rgb8() })
}

/// Replaces transparency with white, the paper of most plots.
fn lay_on_white(image: &DynamicImage) -> RgbImage {
    let mut paper = image::RgbaImage::from_pixel(image.width(), image.height(), image::Rgba([255; 4]));
    imageops::overlay(&mut paper, &image.to_rgba8(), 0, 0);
    DynamicImage::from(paper).into_rgb8()
}

/// Scales and encodes a decoded picture.
///
/// # Errors
/// Returns an error when the encoder refuses the picture.
pub fn encode(image: &RgbImage, order: &PictureOrder) -> Result<Picture, PictureError> {
    let (columns, rows) = (u32::from(order.room.0), u32::from(order.room.1));
    let pixels = fit(image, (columns, rows * 2));
    let cell = (u32::from(order.support.cell.0.max(1)), u32::from(order.support.cell.1.max(1)));
    let mut picture = Picture { source: image.dimensions(), pixels, encoded: None, encoded_bytes: 0 };
    if order.support.kind.has_pixels() {
        let scaled = fit(image, (columns * cell.0, rows * cell.1));
        let cells = |pixels: u32, cell: u32| u16::try_from(pixels.div_ceil(cell)).unwrap_or(u16::MAX);
        let size = Size::new(cells(scaled.width(), cell.0), cells(scaled.height(), cell.1));
        let pixels = scaled.as_raw().len() / 3;
        let encoded = encode_pixels(scaled.into(), size, picture_id(order), order.support)?;
        picture.encoded_bytes = encoded_bytes(&encoded, pixels);
        picture.encoded = Some(encoded);
    }
    Ok(picture)
}

/// Returns the size of an encoded picture.
fn encoded_bytes(encoded: &Protocol, pixels: usize) -> usize {
    match encoded {
        Protocol::Sixel(sixel) => sixel.data.len(),
        Protocol::ITerm2(iterm2) => iterm2.data.len(),
        // Kitty gets four bytes for a pixel, in base64.
        _ => pixels * 16 / 3,
    }
}

fn encode_pixels(image: DynamicImage, size: Size, id: u32, support: PictureSupport) -> Result<Protocol, PictureError> {
    let tmux = support.through_tmux;
    let protocol = match support.kind {
        PictureKind::Kitty => Kitty::new(image, size, id, tmux, false).map(Protocol::Kitty),
        PictureKind::ITerm2 => Iterm2::new(image, size, tmux).map(Protocol::ITerm2),
        _ => Sixel::new(image, size, tmux).map(Protocol::Sixel),
    };
    protocol.map_err(|error| PictureError::Unencodable(error.to_string()))
}

/// Returns the number by which kitty knows the picture: the same for the same order, never 0.
fn picture_id(order: &PictureOrder) -> u32 {
    let mut hasher = DefaultHasher::new();
    order.hash(&mut hasher);
    (hasher.finish() as u32).max(1)
}

/// Scales a picture into a room. From twice its size, enlarges by whole factors, which keeps pixels square and sharp.
fn fit(image: &RgbImage, room: (u32, u32)) -> RgbImage {
    let (width, height) = image.dimensions();
    let room = (room.0.max(1), room.1.max(1));
    let factor = (room.0 / width.max(1)).min(room.1 / height.max(1));
    if factor >= 2 || (width, height) == room {
        return imageops::resize(image, width * factor, height * factor, FilterType::Nearest);
    }
    let share = (f64::from(room.0) / f64::from(width)).min(f64::from(room.1) / f64::from(height));
    let side = |pixels: u32| ((f64::from(pixels) * share).round() as u32).max(1);
    imageops::resize(image, side(width).min(room.0), side(height).min(room.1), FilterType::Triangle)
}

#[cfg(test)]
mod tests;
