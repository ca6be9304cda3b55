//! HTML under construction. Markup is `'static`, so text of a run can only enter redacted and escaped.

use crate::redact::Redactor;
use crate::untrusted::text::{clip_line, escape_lines};
use serde_json::Value;
use std::fmt::Write;

/// Maximum number of characters of one text.
const LONGEST: usize = 1000;

/// A page under construction.
pub struct Page<'a> {
    html: String,
    redactor: &'a Redactor,
}

impl<'a> Page<'a> {
    /// Creates an empty page whose texts pass through a redactor.
    pub fn new(redactor: &'a Redactor) -> Self {
        Self { html: String::with_capacity(1 << 18), redactor }
    }

    /// Returns the HTML.
    pub fn into_html(self) -> String {
        self.html
    }

    /// Adds markup of the program.
    pub fn markup(&mut self, html: &'static str) -> &mut Self {
        self.html.push_str(html);
        self
    }

    /// Adds a text of the run on one line, cut after 1 000 characters.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let clean = self.redactor.clean(text);
        self.value(&clip_line(&clean, LONGEST))
    }

    /// Adds a text of the run with its lines, as a whole.
    pub fn lines(&mut self, text: &str) -> &mut Self {
        let clean = self.redactor.clean(text);
        self.value(&escape_lines(&clean))
    }

    /// Adds a text that the program composed of numbers and words of its own.
    pub fn value(&mut self, text: &str) -> &mut Self {
        for letter in text.chars() {
            match letter {
                '&' => self.html.push_str("&amp;"),
                '<' => self.html.push_str("&lt;"),
                '>' => self.html.push_str("&gt;"),
                '"' => self.html.push_str("&quot;"),
                letter => self.html.push(letter),
            }
        }
        self
    }

    /// Adds a number, in an attribute.
    pub fn number(&mut self, value: f64) -> &mut Self {
        let _ = write!(self.html, "{value:.3}");
        self
    }

    /// Adds data for a script: no text in it can end the element.
    pub fn json(&mut self, data: &Value) -> &mut Self {
        let text = self.clean_json(data).to_string();
        self.html.push_str(&escape_lines(&text).replace('<', "\\u003c"));
        self
    }

    /// Adds a table cell with a text of the run.
    pub fn cell(&mut self, text: &str) -> &mut Self {
        self.markup("<td>").text(text).markup("</td>")
    }

    /// Adds a table cell with a number, right-aligned.
    pub fn figure(&mut self, text: &str) -> &mut Self {
        self.markup("<td class=\"num\">").value(text).markup("</td>")
    }

    /// Adds a name and its value to a list of such pairs.
    pub fn pair(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.markup("<div><dt>").markup(name).markup("</dt><dd>").text(value).markup("</dd></div>\n")
    }

    /// Adds a name and its value with a remark in small print.
    pub fn remarked_pair(&mut self, name: &'static str, value: &str, remark: &str) -> &mut Self {
        self.markup("<div><dt>").markup(name).markup("</dt><dd>").text(value).markup("<small>").text(remark);
        self.markup("</small></dd></div>\n")
    }

    fn clean_json(&self, data: &Value) -> Value {
        match data {
            Value::String(text) => self.redactor.clean(text).into(),
            Value::Array(list) => list.iter().map(|item| self.clean_json(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), self.clean_json(value))).collect()
            }
            other => other.clone(),
        }
    }
}
