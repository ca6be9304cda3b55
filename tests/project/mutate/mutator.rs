//! Damages a file, driven by a seed: the same seed always produces the same file.

/// Numbers that are invalid as sizes, counts and steps.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "4294967296",
    "2147483648",
    "18446744073709551615",
    "9223372036854775807",
    "1e308",
    "-1e-308",
    "4000000000",
    "16777217",
    "0.5",
];

/// Text that a terminal or a parser would interpret.
const WORDS: [&str; 10] = [
    "\u{1b}]52;c;aGk=\u{7}",
    "\u{1b}[2J",
    "\u{202e}exe",
    "\u{9b}31m",
    "\"a\\u001b[0m\\nb\"",
    "!tag x",
    "&a [*a]",
    "<<: *a",
    "null",
    "/dev/zero",
];

/// A stream of random numbers (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// Returns the file with one to four kinds of damage.
pub fn mutate(sample: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..=draw.below(4) {
        damage(&mut bytes, draw);
        bytes.truncate(1 << 21);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, draw: &mut Draw) {
    let at = draw.below(bytes.len() + 1);
    let to = at + draw.below((bytes.len() - at).min(1 << 12) + 1);
    match draw.below(12) {
        0 => {
            for _ in 0..=draw.below(8) {
                let place = draw.below(bytes.len());
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1 << draw.below(8);
                }
            }
        }
        1 => bytes.truncate(at),
        2 => {
            let noise: Vec<u8> = (0..=draw.below(64)).map(|_| draw.next() as u8).collect();
            bytes.splice(at..at, noise);
        }
        3 => drop(bytes.drain(at..to)),
        4 => {
            let section = bytes[at..to].to_vec();
            let times = [1, 2, 40, 3_000][draw.below(4)];
            bytes.splice(to..to, section.repeat(times.min((1 << 20) / section.len().max(1))));
        }
        5 | 6 => replace_number(bytes, draw),
        7 => {
            let opening = draw.pick(&["[", "{", "{a: ", "{\"a\":", "- ", "[[", "? ", "\n  "]);
            let times = [1, 40, 300, 200_000][draw.below(4)];
            bytes.splice(at..at, opening.repeat(times.min((1 << 20) / opening.len())).into_bytes());
        }
        8 => {
            let word = draw.pick(&WORDS);
            bytes.splice(at..at, word.bytes());
        }
        // Overwrites sizes in headers.
        9 => {
            let start = draw.below(bytes.len().min(64) + 1);
            let value = [[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0; 4], [0, 0, 0, 0x80]][draw.below(4)];
            for (byte, new) in bytes.iter_mut().skip(start).zip(value) {
                *byte = new;
            }
        }
        10 => repeat_line(bytes, draw),
        _ => {
            let (first, last) = (draw.below(bytes.len()), draw.below(bytes.len()));
            if !bytes.is_empty() {
                bytes.swap(first, last);
            }
        }
    }
}

/// Replaces a number in the text with another one.
fn replace_number(bytes: &mut Vec<u8>, draw: &mut Draw) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| {
            bytes[*at].is_ascii_digit()
                && !at.checked_sub(1).is_some_and(|before| bytes[before].is_ascii_alphanumeric())
        })
        .collect();
    if let Some(start) = starts.get(draw.below(starts.len())).copied() {
        let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let number = draw.pick(&NUMBERS);
        bytes.splice(start..start + length, number.bytes());
    }
}

/// Repeats a line many times, each time with a different first letter.
fn repeat_line(bytes: &mut Vec<u8>, draw: &mut Draw) {
    let lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let number = draw.below(lines.len());
    let times = [2, 100, 20_000][draw.below(3)].min((1 << 20) / (lines[number].len() + 8));
    let mut out = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        out.extend_from_slice(line);
        out.push(b'\n');
        for copy in 0..if index == number { times } else { 0 } {
            let indent = line.iter().take_while(|byte| **byte == b' ').count();
            out.extend_from_slice(&line[..indent]);
            out.extend_from_slice(format!("k{copy}").as_bytes());
            out.extend_from_slice(&line[indent..]);
            out.push(b'\n');
        }
    }
    *bytes = out;
}
