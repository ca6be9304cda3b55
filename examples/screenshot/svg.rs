//! Renders a buffer of cells as SVG. Text is text, each letter placed at its cell; lines, bars and curve
//! dots are shapes, so the picture looks the same with any font.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};
use std::fmt::Write;

/// Width and height of a cell, and the margin around the screen.
const CELL: (f64, f64) = (8.4, 17.0);
const MARGIN: f64 = 12.0;

/// Renders a buffer; `base` sets the background.
pub fn render_buffer(buffer: &Buffer, base: Style) -> String {
    let (width, height) = (f64::from(buffer.area.width) * CELL.0, f64::from(buffer.area.height) * CELL.1);
    let (ground, mut out) = (hex_colour(base.bg, "#000000"), String::new());
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{0} {0} {1:.1} {2:.1}\" font-size=\"14\" \
         font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\">\n\
         <rect x=\"{0}\" y=\"{0}\" width=\"{1:.1}\" height=\"{2:.1}\" rx=\"8\" fill=\"{ground}\"/>\n",
        -MARGIN,
        width + 2.0 * MARGIN,
        height + 2.0 * MARGIN
    );
    for y in 0..buffer.area.height {
        let mut x = 0;
        while x < buffer.area.width {
            let style = buffer[(x, y)].style();
            let end = (x..buffer.area.width).find(|x| buffer[(*x, y)].style() != style).unwrap_or(buffer.area.width);
            let cells: Vec<(u16, char)> =
                (x..end).map(|x| (x, buffer[(x, y)].symbol().chars().next().unwrap_or(' '))).collect();
            render_run(&mut out, &cells, y, style, &ground);
            x = end;
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Renders adjacent cells of one style: background, shapes, letters.
fn render_run(out: &mut String, cells: &[(u16, char)], y: u16, style: Style, ground: &str) {
    let (mut ink, mut paper) = (hex_colour(style.fg, "#ffffff"), hex_colour(style.bg, ground));
    if style.add_modifier.contains(Modifier::REVERSED) {
        (ink, paper) = (paper, ink);
    }
    let top = f64::from(y) * CELL.1;
    if paper != ground {
        let (left, width) = (f64::from(cells[0].0) * CELL.0, cells.len() as f64 * CELL.0);
        let _ = writeln!(out, "<path fill=\"{paper}\" d=\"M{left:.1} {top}h{width:.1}v{}h-{width:.1}z\"/>", CELL.1);
    }
    let (mut thin, mut thick, mut dots) = (String::new(), String::new(), String::new());
    let mut letters: Vec<(f64, char)> = Vec::new();
    for &(x, letter) in cells {
        let left = f64::from(x) * CELL.0;
        match letter {
            ' ' => letters.push((left, ' ')),
            '\u{2800}'..='\u{28ff}' => {
                dots.push_str(&braille_path(letter, left, top));
                letters.push((left, ' '));
            }
            _ => {
                let arms = line_arms(letter);
                match arms {
                    Some((true, arms)) => thick.push_str(&line_path(arms, left, top)),
                    Some((false, arms)) => thin.push_str(&line_path(arms, left, top)),
                    None => {}
                }
                // A space stands in for a drawn shape: not every renderer honours the position list.
                letters.push((left, if arms.is_some() { ' ' } else { letter }));
            }
        }
    }
    let (places, text) = place_letters(&letters);
    for (path, width, more) in [(thin, "1", ""), (thick, "2.6", ""), (dots, "1.9", " stroke-linecap=\"round\"")] {
        if !path.is_empty() {
            let _ = writeln!(out, "<path stroke=\"{ink}\" stroke-width=\"{width}\"{more} fill=\"none\" d=\"{path}\"/>");
        }
    }
    if !text.is_empty() {
        let weight = if style.add_modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
        let (places, foot) = (places.trim_end(), top + 13.0);
        let _ = writeln!(
            out,
            "<text xml:space=\"preserve\" x=\"{places}\" y=\"{foot}\" fill=\"{ink}\"{weight}>{text}</text>"
        );
    }
}

/// Returns the positions of letters, from the first to the last non-space, and the letters themselves.
fn place_letters(letters: &[(f64, char)]) -> (String, String) {
    let seen = |(_, letter): &(f64, char)| *letter != ' ';
    let (Some(first), Some(last)) = (letters.iter().position(seen), letters.iter().rposition(seen)) else {
        return (String::new(), String::new());
    };
    let (mut places, mut text) = (String::new(), String::new());
    for (left, letter) in &letters[first..=last] {
        let _ = write!(places, "{left:.1} ");
        match letter {
            '<' => text.push_str("&lt;"),
            '&' => text.push_str("&amp;"),
            other => text.push(*other),
        }
    }
    (places, text)
}

/// Returns whether a line is thick, and its arms from the centre: left, right, up, down; 2 = dotted.
fn line_arms(letter: char) -> Option<(bool, [u8; 4])> {
    let arms = match letter {
        '─' | '━' => [1, 1, 0, 0],
        '╸' => [1, 0, 0, 0],
        '│' => [0, 0, 1, 1],
        '┈' | '╌' => [2, 2, 0, 0],
        '┊' => [0, 0, 2, 2],
        '└' | '╰' => [0, 1, 1, 0],
        '╯' => [1, 0, 1, 0],
        '╭' => [0, 1, 0, 1],
        '╮' => [1, 0, 0, 1],
        '┤' => [1, 0, 1, 1],
        '┬' => [1, 1, 0, 1],
        '┴' => [1, 1, 1, 0],
        '┼' => [1, 1, 1, 1],
        _ => return None,
    };
    Some((matches!(letter, '━' | '╸'), arms))
}

fn line_path(arms: [u8; 4], left: f64, top: f64) -> String {
    let (x, y) = (left + CELL.0 / 2.0, top + CELL.1 / 2.0);
    let ways = [(-CELL.0 / 2.0, 0.0), (CELL.0 / 2.0, 0.0), (0.0, -CELL.1 / 2.0), (0.0, CELL.1 / 2.0)];
    let mut path = String::new();
    for ((across, down), kind) in ways.into_iter().zip(arms).filter(|(_, kind)| *kind > 0) {
        // A dotted arm starts and ends with a gap.
        let (from, to) = if kind == 2 { (0.25, 0.75) } else { (0.0, 1.0) };
        let (x, y) = (x + across * from, y + down * from);
        let _ = write!(path, "M{x:.1} {y:.1}l{:.1} {:.1}", across * (to - from), down * (to - from));
    }
    path
}

fn braille_path(letter: char, left: f64, top: f64) -> String {
    const PLACES: [(f64, f64); 8] =
        [(0.0, 0.0), (0.0, 1.0), (0.0, 2.0), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (0.0, 3.0), (1.0, 3.0)];
    let bits = u32::from(letter) - 0x2800;
    let set = PLACES.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    let mut path = String::new();
    for (_, (across, down)) in set {
        let (x, y) = (left + CELL.0 * (0.25 + 0.5 * across), top + CELL.1 * (0.125 + 0.25 * down));
        let _ = write!(path, "M{x:.1} {y:.1}h.01");
    }
    path
}

fn hex_colour(colour: Option<Color>, default: &str) -> String {
    match colour {
        Some(Color::Rgb(red, green, blue)) => format!("#{red:02x}{green:02x}{blue:02x}"),
        _ => default.to_owned(),
    }
}
