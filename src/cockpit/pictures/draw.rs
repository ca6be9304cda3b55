//! Draws a picture into a frame.

use super::{Picture, PictureKind};
use crate::theme::Theme;
use image::Rgb;
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size};
use ratatui::style::{Color, Style};
use ratatui::widgets::Widget;
use ratatui_image::Image;

/// Characters by brightness.
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Draws a picture in the middle of an area. Uses cells alone where the terminal's protocol is not `allowed`: below a
/// box, pixels would cover the box or be erased by it.
pub fn draw_picture(
    buffer: &mut Buffer,
    area: Rect,
    picture: &Picture,
    kind: PictureKind,
    allowed: bool,
    theme: &Theme,
) {
    match &picture.encoded {
        Some(protocol) if allowed => Image::new(protocol).render(centre(area, protocol.size()), buffer),
        _ => draw_cells(buffer, centre(area, picture.cells()), picture, kind, theme),
    }
}

fn centre(area: Rect, size: Size) -> Rect {
    let (width, height) = (size.width.min(area.width), size.height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

fn draw_cells(buffer: &mut Buffer, area: Rect, picture: &Picture, kind: PictureKind, theme: &Theme) {
    for position in area.positions() {
        let (x, y) = (u32::from(position.x - area.x), u32::from(position.y - area.y) * 2);
        let Some(upper) = picture.pixels.get_pixel_checked(x, y).copied() else { continue };
        let lower = picture.pixels.get_pixel_checked(x, y + 1).copied();
        let Some(cell) = buffer.cell_mut(position) else { continue };
        if kind == PictureKind::Shades {
            let light = brightness(upper).midpoint(brightness(lower.unwrap_or(upper)));
            cell.set_char(SHADES[usize::from(light) * SHADES.len() / 256]);
        } else {
            let colour = |Rgb([r, g, b]): Rgb<u8>| theme.colours().reduce(Color::Rgb(r, g, b));
            cell.set_char('▀').set_style(Style { fg: colour(upper), ..Style::new() });
            if let Some(colour) = lower.and_then(colour) {
                cell.set_bg(colour);
            }
        }
    }
}

/// Returns the brightness as the eye sees it, by ITU-R BT.709.
fn brightness(Rgb([r, g, b]): Rgb<u8>) -> u16 {
    ((2126 * u32::from(r) + 7152 * u32::from(g) + 722 * u32::from(b)) / 10_000) as u16
}
