//! Renders an SVG as PNG. The font ships inside, so that the picture is the same everywhere.

use crate::export::ExportError;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::sync::Arc;

/// Inter, regular and semi-bold, with Latin, Greek and Cyrillic letters; see assets/README.md.
const FONTS: [&[u8]; 2] = [
    include_bytes!("../../../assets/fonts/Inter-Regular.otf"),
    include_bytes!("../../../assets/fonts/Inter-SemiBold.otf"),
];

/// Renders an SVG with `scale` pixels per unit.
///
/// # Errors
/// Returns an error when the picture is too large.
pub fn render_png(svg: &str, scale: f32) -> Result<Vec<u8>, ExportError> {
    let mut options = Options { font_family: "Inter".to_owned(), ..Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    for font in FONTS {
        fonts.load_font_data(font.to_vec());
    }
    let tree = Tree::from_str(svg, &options).map_err(|error| ExportError::Render(error.to_string()))?;
    let pixels = |length: f32| (length * scale).ceil() as u32;
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    let mut pixmap = Pixmap::new(width, height).ok_or(ExportError::TooLarge { width, height })?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| ExportError::Render(error.to_string()))
}
