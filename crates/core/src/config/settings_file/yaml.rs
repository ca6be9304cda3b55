//! YAML, read as events with places. Scalars count as PyYAML and OmegaConf read them: where those differ (`1e-4`), a number.

use super::{DEPTH, Format, Node, Scalar, SyntaxError};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};
use serde_json::Value;
use std::ops::Range;

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut reader = Reader { events: Parser::new_from_str(text), lines: Lines::new(text), ended: (1, 1) };
    let mut root = Node::Map(Vec::new());
    let mut documents = 0;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::StreamEnd | Event::Nothing => {}
            event => {
                documents += 1;
                if documents > 1 {
                    return Err(reader.wrong("it holds more than one document"));
                }
                root = reader.node(event, span, 0)?;
            }
        }
    }
    Ok(root)
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    lines: Lines<'a>,
    ended: (usize, usize),
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, SyntaxError> {
        match self.events.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => {
                self.ended = (span.start.line().max(1), span.start.col() + 1);
                Ok(Some((event, span)))
            }
            Some(Err(error)) => {
                let place = (error.marker().line().max(1), error.marker().col() + 1);
                Err(SyntaxError { format: Format::Yaml, place, message: error.info().to_owned() })
            }
        }
    }

    fn wrong(&self, message: &str) -> SyntaxError {
        SyntaxError { format: Format::Yaml, place: self.ended, message: message.to_owned() }
    }

    fn some(&mut self) -> Result<(Event<'a>, Span), SyntaxError> {
        self.next()?.ok_or_else(|| self.wrong("it ends too early"))
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, SyntaxError> {
        if depth > DEPTH {
            return Err(self.wrong("it is nested too deeply"));
        }
        match event {
            Event::Scalar(text, style, _, tag) => {
                let span = self.lines.span(span);
                if tag.is_some() {
                    return Ok(Node::Fixed("a value with a tag", span));
                }
                Ok(self.scalar(&text, style, span))
            }
            Event::SequenceStart(..) => {
                let start = span.start;
                let mut items = Vec::new();
                loop {
                    match self.some()? {
                        (Event::SequenceEnd, end) => {
                            return Ok(Node::List(items, Some(self.lines.trimmed(start, end.end))));
                        }
                        (event, span) => items.push(self.node(event, span, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => self.mapping(depth),
            _ => Ok(Node::Fixed("an alias of another value", self.lines.span(span))),
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        let mut entries = Vec::new();
        loop {
            let key = match self.some()? {
                (Event::MappingEnd, _) => return Ok(Node::Map(entries)),
                (Event::Scalar(text, ..), _) => Some(text.into_owned()),
                (event, span) => {
                    self.node(event, span, depth + 1)?;
                    None
                }
            };
            let (event, span) = self.some()?;
            let value = self.node(event, span, depth + 1)?;
            entries.extend(key.map(|key| (key, value)));
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, span: Range<usize>) -> Node {
        let value = match style {
            ScalarStyle::Plain if text.is_empty() => return Node::Fixed("empty (write null, or a value)", span),
            ScalarStyle::Plain => read_plain(text),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                let span = self.lines.quoted(span.start);
                return Node::Scalar(Scalar { span, value: text.into() });
            }
            ScalarStyle::Literal | ScalarStyle::Folded => return Node::Fixed("a text of several lines", span),
        };
        // A plain text may go on over lines; its value has one line.
        Node::Scalar(Scalar { span, value })
    }
}

/// Reads a scalar without quotes.
pub(super) fn read_plain(text: &str) -> Value {
    match text {
        "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return true.into(),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return false.into(),
        _ => {}
    }
    let digits = text.trim_start_matches(['-', '+']);
    let is_number = digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.')
        && digits.contains(|letter: char| letter.is_ascii_digit())
        && digits.chars().all(|letter| letter.is_ascii_digit() || "._eE+-".contains(letter));
    let plain = text.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    // YAML 1.1 reads a leading zero as octal.
    let is_octal = digits.len() > 1 && digits.starts_with('0') && digits.chars().all(|letter| letter.is_ascii_digit());
    if !is_number || is_octal {
        return text.into();
    }
    if let Ok(number) = plain.parse::<i64>() {
        return number.into();
    }
    let number = plain.parse::<f64>().ok().filter(|number| number.is_finite());
    number.map_or_else(|| text.into(), Value::from)
}

/// Turns lines and columns of the parser into bytes.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: [0].into_iter().chain(breaks).collect() }
    }

    fn byte(&self, marker: Marker) -> usize {
        let start = self.starts.get(marker.line().saturating_sub(1)).copied().unwrap_or(self.text.len());
        let line = self.text.get(start..).unwrap_or_default();
        line.char_indices().nth(marker.col()).map_or(self.text.len(), |(at, _)| start + at)
    }

    fn span(&self, span: Span) -> Range<usize> {
        self.trimmed(span.start, span.end)
    }

    /// Returns the range of a quoted text. The parser's own range goes on over a comment.
    fn quoted(&self, start: usize) -> Range<usize> {
        let mut letters = self.text.get(start..).unwrap_or_default().char_indices();
        let quote = letters.next().map_or('"', |(_, letter)| letter);
        let mut letters = letters.peekable();
        while let Some((at, letter)) = letters.next() {
            if letter == '\\' && quote == '"' {
                letters.next();
            } else if letter == quote && letters.next_if(|(_, next)| quote == '\'' && *next == quote).is_none() {
                return start..start + at + letter.len_utf8();
            }
        }
        start..self.text.len()
    }

    /// Returns a range without the spaces at its end.
    fn trimmed(&self, start: Marker, end: Marker) -> Range<usize> {
        let (start, end) = (self.byte(start), self.byte(end));
        let text = self.text.get(start..end.max(start)).unwrap_or_default();
        start..start + text.trim_end().len()
    }
}
