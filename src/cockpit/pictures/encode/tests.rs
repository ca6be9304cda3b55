use super::{decode, encode, fit, make_picture};
use crate::cockpit::fixture::samples::picture;
use crate::cockpit::pictures::{Picture, PictureError, PictureKind, PictureOrder, PictureSupport, draw};
use crate::theme::{Colours, Theme};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use ratatui::buffer::{Buffer, CellDiffOption};
use ratatui::layout::Rect;
use ratatui::style::Color;
use std::io::Cursor;
use std::path::PathBuf;

fn order(kind: PictureKind, through_tmux: bool) -> PictureOrder {
    let support = PictureSupport { kind, cell: (8, 16), through_tmux };
    PictureOrder { path: PathBuf::from("/p.png"), time_ms: 0, room: (6, 3), support }
}

/// Draws a picture of 8 × 8 pixels into 6 × 3 cells of 8 × 16 pixels, where it is enlarged six times; returns what
/// the terminal receives for it.
fn sent(kind: PictureKind, through_tmux: bool) -> (Picture, Buffer, String) {
    let picture = encode(&picture(4), &order(kind, through_tmux)).unwrap();
    let area = Rect::new(0, 0, 6, 3);
    let mut buffer = Buffer::empty(area);
    draw::draw_picture(&mut buffer, area, &picture, kind, true, &Theme::shipped().unwrap()[0]);
    let symbols = buffer.content.iter().filter(|cell| cell.diff_option != CellDiffOption::Skip);
    let symbols = symbols.map(ratatui::buffer::Cell::symbol).collect();
    (picture, buffer, symbols)
}

fn enlarged() -> RgbImage {
    fit(&picture(4), (48, 48))
}

/// Undoes the wrapping of tmux.
fn unwrap_tmux(text: &str) -> String {
    let inside = text.split("\u{1b}Ptmux;").skip(1);
    let parts = inside.map(|part| {
        let end = part.rfind("\u{1b}\\").unwrap();
        part[..end].replace("\u{1b}\u{1b}", "\u{1b}")
    });
    parts.collect()
}

#[test]
fn kitty_receives_the_pixels() {
    use base64::prelude::{BASE64_STANDARD, Engine};
    for tmux in [false, true] {
        let (_, _, symbols) = sent(PictureKind::Kitty, tmux);
        let text = if tmux { unwrap_tmux(&symbols) } else { symbols.clone() };
        let mut pixels = Vec::new();
        for command in text.split("\u{1b}_G").skip(1) {
            let (keys, payload) = command.split("\u{1b}\\").next().unwrap().split_once(';').unwrap();
            assert_eq!(keys.contains("s=48,v=48"), pixels.is_empty(), "{keys}");
            pixels.extend(BASE64_STANDARD.decode(payload).unwrap());
        }
        let received = RgbaImage::from_raw(48, 48, pixels).unwrap();
        assert_eq!(DynamicImage::from(received).into_rgb8(), enlarged());
        assert_eq!(symbols.matches('\u{10eeee}').count(), 18, "a placeholder in each cell");
    }
}

#[test]
fn iterm2_receives_a_png_of_the_pixels() {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let (_, _, symbols) = sent(PictureKind::ITerm2, false);
    let file = symbols.split("\u{1b}]1337;File=").nth(1).unwrap().split('\u{7}').next().unwrap();
    let png = BASE64_STANDARD.decode(file.split_once(':').unwrap().1).unwrap();
    assert_eq!(decode(png).unwrap(), enlarged());
}

#[test]
fn a_sixel_decoder_sees_the_picture() {
    for tmux in [false, true] {
        let (_, _, symbols) = sent(PictureKind::Sixel, tmux);
        let text = if tmux { unwrap_tmux(&symbols) } else { symbols };
        let start = text.find("\u{1b}P").unwrap();
        let (width, height, pixels) = decode_sixel(&text[start..]);
        assert_eq!((width, height), (48, 48));
        // A sixel gives each part of a colour in hundredths.
        let expected = enlarged();
        let off =
            |place: usize, channel: usize| pixels[place][channel].abs_diff(expected.as_raw()[place * 3 + channel]);
        let furthest = (0..48 * 48).flat_map(|place| (0..3).map(move |channel| (place, channel)));
        assert!(furthest.map(|(place, channel)| off(place, channel)).max().unwrap() <= 6);
    }
}

/// Decodes a sixel picture: colours, repeats, line ends.
fn decode_sixel(text: &str) -> (usize, usize, Vec<[u8; 3]>) {
    let body = &text[text.find('q').unwrap() + 1..text.rfind("\u{1b}\\").unwrap()];
    let mut letters = body.chars().peekable();
    let numbers = |letters: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Vec<usize> {
        let mut text = String::new();
        while let Some(letter) = letters.next_if(|letter| letter.is_ascii_digit() || *letter == ';') {
            text.push(letter);
        }
        text.split(';').map(|number| number.parse().unwrap_or(0)).collect()
    };
    let (mut palette, mut colour, mut pixels) = (vec![[0u8; 3]; 256], 0, std::collections::BTreeMap::new());
    let (mut x, mut band, mut repeat, mut size) = (0, 0, 1, (0, 0));
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                size = {
                    let raster = numbers(&mut letters);
                    (raster[2], raster[3])
                }
            }
            '#' => {
                let parts = numbers(&mut letters);
                colour = parts[0];
                if let [_, 2, r, g, b] = parts[..] {
                    palette[colour] = [r, g, b].map(|part| (part as f64 * 2.55).round() as u8);
                }
            }
            '!' => repeat = numbers(&mut letters)[0],
            '$' => x = 0,
            '-' => (x, band) = (0, band + 1),
            '?'..='~' => {
                let bits = letter as u32 - u32::from('?');
                for _ in 0..repeat {
                    for bit in (0..6).filter(|bit| bits >> bit & 1 == 1) {
                        pixels.insert((band * 6 + bit, x), palette[colour]);
                    }
                    x += 1;
                }
                repeat = 1;
            }
            _ => {}
        }
    }
    let all = (0..size.1).flat_map(|y| (0..size.0).map(move |x| (y, x))).map(|at| pixels[&at]).collect();
    (size.0, size.1, all)
}

#[test]
fn half_blocks_have_the_colours_of_the_pixels() {
    let (picture, buffer, _) = sent(PictureKind::HalfBlocks, false);
    // Six pixels in height hold a picture of eight only if it is shrunk.
    assert_eq!(picture.pixels.dimensions(), (6, 6));
    let colour = |x: u32, y: u32| {
        let Rgb([r, g, b]) = *picture.pixels.get_pixel(x, y);
        Color::Rgb(r, g, b)
    };
    for (x, y) in (0..6u16).flat_map(|x| (0..3u16).map(move |y| (x, y))) {
        let cell = &buffer[(x, y)];
        let (column, row) = (u32::from(x), u32::from(y) * 2);
        assert_eq!((cell.symbol(), cell.fg, cell.bg), ("▀", colour(column, row), colour(column, row + 1)));
    }
    let mut few = Buffer::empty(Rect::new(0, 0, 6, 3));
    let theme = Theme::shipped().unwrap().remove(0).reduced_to(Colours::Indexed);
    draw::draw_picture(&mut few, Rect::new(0, 0, 6, 3), &picture, PictureKind::HalfBlocks, true, &theme);
    assert!(few.content.iter().all(|cell| matches!((cell.fg, cell.bg), (Color::Indexed(_), Color::Indexed(_)))));
}

#[test]
fn below_a_box_a_picture_is_drawn_with_cells() {
    let picture = encode(&picture(4), &order(PictureKind::Sixel, false)).unwrap();
    let area = Rect::new(0, 0, 6, 3);
    let mut buffer = Buffer::empty(area);
    draw::draw_picture(&mut buffer, area, &picture, PictureKind::Sixel, false, &Theme::shipped().unwrap()[0]);
    assert!(buffer.content.iter().all(|cell| cell.symbol() == "▀"));
}

fn png(image: &DynamicImage) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
fn files_are_decoded_within_limits() {
    let folder = tempfile::tempdir().unwrap();
    let mut order = order(PictureKind::HalfBlocks, false);
    order.path = folder.path().join("p.png");
    assert!(matches!(make_picture(&order), Err(PictureError::Unread(_))));
    for content in [&b"<html>"[..], b"", b"\x89PNG\r\n\x1a\n", &png(&picture(1).into())[..90]] {
        std::fs::write(&order.path, content).unwrap();
        assert!(matches!(make_picture(&order), Err(PictureError::Undecodable(_))));
    }
    // One grey line compresses to nothing; its picture would have 20 000 columns.
    std::fs::write(&order.path, png(&DynamicImage::new_luma8(20_000, 1))).unwrap();
    let error = make_picture(&order).unwrap_err();
    assert!(matches!(&error, PictureError::Undecodable(_)), "{error}");
    std::fs::write(&order.path, png(&DynamicImage::new_luma8(3, 1000))).unwrap();
    let thin = make_picture(&order).unwrap();
    assert_eq!((thin.source, thin.pixels.dimensions()), ((3, 1000), (1, 6)));
}

#[test]
fn transparency_becomes_white() {
    let clear = RgbaImage::from_pixel(2, 2, Rgba([10, 20, 30, 0]));
    assert_eq!(decode(png(&clear.into())).unwrap().get_pixel(0, 0), &Rgb([255; 3]));
}

#[test]
fn small_pictures_grow_by_whole_factors() {
    let size = |image: (u32, u32), room| fit(&RgbImage::new(image.0, image.1), room).dimensions();
    assert_eq!(size((8, 8), (32, 32)), (32, 32));
    assert_eq!(size((8, 8), (31, 40)), (24, 24));
    assert_eq!(size((8, 8), (12, 14)), (12, 12));
    assert_eq!(size((100, 50), (40, 40)), (40, 20));
    assert_eq!(size((1, 5000), (40, 40)), (1, 40));
}
