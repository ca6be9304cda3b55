//! TOML, read by `toml_edit`, which tells the place of each value.

use super::{Format, Node, Scalar, SyntaxError, place_at};
use serde_json::Value;
use std::ops::Range;
use toml_edit::{Document, Item};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let document = Document::parse(text).map_err(|error| SyntaxError {
        format: Format::Toml,
        place: place_at(text, error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    Ok(read_table(document.as_table()))
}

fn read_table(table: &dyn toml_edit::TableLike) -> Node {
    Node::Map(
        table.iter().filter(|(_, item)| !item.is_none()).map(|(key, item)| (key.to_owned(), read(item))).collect(),
    )
}

fn read(item: &Item) -> Node {
    match item {
        Item::None => Node::Fixed("nothing", 0..0),
        Item::Value(value) => read_value(value),
        Item::Table(table) => read_table(table),
        Item::ArrayOfTables(tables) => Node::List(tables.iter().map(|table| read_table(table)).collect(), None),
    }
}

fn read_value(value: &toml_edit::Value) -> Node {
    let span = value.span().unwrap_or_default();
    let scalar = |span: Range<usize>, value: Value| Node::Scalar(Scalar { span, value });
    match value {
        toml_edit::Value::String(text) => scalar(span, text.value().as_str().into()),
        toml_edit::Value::Integer(number) => scalar(span, (*number.value()).into()),
        toml_edit::Value::Float(number) if number.value().is_finite() => scalar(span, (*number.value()).into()),
        toml_edit::Value::Float(_) => Node::Fixed("no finite number", span),
        toml_edit::Value::Boolean(value) => scalar(span, (*value.value()).into()),
        toml_edit::Value::Datetime(_) => Node::Fixed("a date", span),
        toml_edit::Value::Array(items) => Node::List(items.iter().map(read_value).collect(), Some(span)),
        toml_edit::Value::InlineTable(table) => read_table(table),
    }
}
