//! Values in a script, as far as they can be known without running it.

use tree_sitter::{Node, TreeCursor};

/// Nesting that is followed; deeper parts count as unknown.
const DEPTH: usize = 8;
/// Maximum entries read from a list, a dictionary or the arguments of a call.
const ENTRIES: usize = 256;
/// Maximum bytes of a name or a text that are kept.
const TEXT: usize = 2_000;

/// A value written out in the source.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a point or an exponent.
    Float(f64),
    /// A string.
    Text(String),
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A value.
    Literal(Literal),
    /// A name with its dots, such as `argparse.BooleanOptionalAction`.
    Name(String),
    /// A call.
    Call(Box<Call>),
    /// A list, a tuple or a set.
    List(Vec<Expr>),
    /// A dictionary, its entries with string keys alone.
    Dict(Vec<(String, Expr)>),
    /// One of these, by a condition.
    Choice(Vec<Expr>),
    /// A text put together from these parts: `f"{folder}/step_{step}.pt"`, `folder / "last.pt"`.
    Joined(Vec<Expr>),
    /// Anything else, which only running the script would tell.
    Unknown,
}

impl Expr {
    /// Returns the value if it is written out.
    pub fn literal(&self) -> Option<&Literal> {
        match self {
            Self::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    /// Returns the text of a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Literal(Literal::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the dotted name.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// A call: `receiver.function(positional, keyword=…)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The text before the last dot; empty without one.
    pub receiver: String,
    /// The last part of the called name.
    pub function: String,
    /// Arguments without a name.
    pub positional: Vec<Expr>,
    /// Arguments with a name.
    pub keywords: Vec<(String, Expr)>,
}

impl Call {
    /// Returns the argument of this name.
    pub fn keyword(&self, name: &str) -> Option<&Expr> {
        self.keywords.iter().find(|(keyword, _)| keyword == name).map(|(_, value)| value)
    }
}

/// Reads the text of a node.
pub(super) fn text_of<'a>(node: Node<'_>, text: &'a str) -> &'a str {
    text.get(node.byte_range()).unwrap_or_default()
}

/// Reads an expression.
pub(super) fn read(node: Node<'_>, text: &str) -> Expr {
    Reader { text }.expression(node, DEPTH)
}

/// Reads a call whose function is a plain or dotted name.
pub(super) fn read_call(node: Node<'_>, text: &str) -> Option<Call> {
    Reader { text }.call(node, DEPTH)
}

/// Returns up to [`ENTRIES`] named children.
fn entries<'tree>(node: Node<'tree>) -> Vec<Node<'tree>> {
    let mut cursor: TreeCursor<'tree> = node.walk();
    node.named_children(&mut cursor).take(ENTRIES).collect()
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn expression(&self, node: Node<'_>, depth: usize) -> Expr {
        let Some(depth) = depth.checked_sub(1) else { return Expr::Unknown };
        let literal = |literal: Option<Literal>| literal.map_or(Expr::Unknown, Expr::Literal);
        match node.kind() {
            "none" => Expr::Literal(Literal::None),
            "true" => Expr::Literal(Literal::Bool(true)),
            "false" => Expr::Literal(Literal::Bool(false)),
            "integer" => literal(parse_integer(text_of(node, self.text))),
            "float" => literal(parse_float(text_of(node, self.text))),
            "string" => self.string(node).map_or_else(|| self.filled_string(node, depth), text_literal),
            "concatenated_string" => {
                let parts: Option<Vec<String>> = entries(node).into_iter().map(|part| self.string(part)).collect();
                let joined = || entries(node).into_iter().map(|part| self.expression(part, depth)).collect();
                parts.map_or_else(|| Expr::Joined(joined()), |parts| text_literal(parts.concat()))
            }
            "identifier" | "attribute" => self.name(node).map_or(Expr::Unknown, Expr::Name),
            "parenthesized_expression" | "type" => match entries(node)[..] {
                [inner] => self.expression(inner, depth),
                _ => Expr::Unknown,
            },
            "list" | "tuple" | "set" | "expression_list" => {
                Expr::List(entries(node).into_iter().map(|entry| self.expression(entry, depth)).collect())
            }
            "conditional_expression" => match entries(node)[..] {
                [then, _, otherwise] => {
                    Expr::Choice(vec![self.expression(then, depth), self.expression(otherwise, depth)])
                }
                _ => Expr::Unknown,
            },
            "dictionary" => Expr::Dict(self.pairs(node, depth)),
            "call" => match self.call(node, depth) {
                Some(call) => Expr::Call(Box::new(call)),
                None => self.format_call(node).unwrap_or(Expr::Unknown),
            },
            "unary_operator" => literal(self.arithmetic(node, depth)),
            "binary_operator" => match self.arithmetic(node, depth) {
                Some(number) => Expr::Literal(number),
                None => self.operator_on_text(node, depth).unwrap_or(Expr::Unknown),
            },
            _ => Expr::Unknown,
        }
    }

    /// Reads `a.b.c`; `None` where a call or an index is in between.
    fn name(&self, node: Node<'_>) -> Option<String> {
        let text = text_of(node, self.text);
        let plain = |character: char| character.is_alphanumeric() || "_.".contains(character);
        (text.len() <= TEXT && text.chars().all(plain)).then(|| text.to_owned())
    }

    fn call(&self, node: Node<'_>, depth: usize) -> Option<Call> {
        let path = self.name(node.child_by_field_name("function")?)?;
        let (receiver, function) = path.rsplit_once('.').unwrap_or(("", &path));
        let mut call = Call {
            receiver: receiver.to_owned(),
            function: function.to_owned(),
            positional: Vec::new(),
            keywords: Vec::new(),
        };
        for argument in entries(node.child_by_field_name("arguments")?) {
            if argument.kind() == "keyword_argument" {
                let (name, value) = (argument.child_by_field_name("name")?, argument.child_by_field_name("value")?);
                call.keywords.push((text_of(name, self.text).to_owned(), self.expression(value, depth)));
            } else if argument.kind() != "comment" {
                call.positional.push(self.expression(argument, depth));
            }
        }
        Some(call)
    }

    fn pairs(&self, node: Node<'_>, depth: usize) -> Vec<(String, Expr)> {
        let pair = |entry: Node<'_>| {
            let key = self.string(entry.child_by_field_name("key")?)?;
            Some((key, self.expression(entry.child_by_field_name("value")?, depth)))
        };
        entries(node).into_iter().filter_map(pair).collect()
    }

    /// Reads a string without values in it.
    fn string(&self, node: Node<'_>) -> Option<String> {
        if node.kind() != "string" {
            return None;
        }
        let (mut raw, mut found) = (false, String::new());
        for part in entries(node) {
            let text = text_of(part, self.text);
            match part.kind() {
                "string_start" if text.contains(['b', 'B']) => return None,
                "string_start" => raw = text.contains(['r', 'R']),
                "string_content" => found.push_str(&if raw { text.to_owned() } else { unescape(text) }),
                "interpolation" => return None,
                _ => {}
            }
        }
        found.truncate(found.floor_char_boundary(TEXT));
        Some(found)
    }

    /// Reads a string with values in it.
    fn filled_string(&self, node: Node<'_>, depth: usize) -> Expr {
        let part = |part: Node<'_>| match part.kind() {
            "string_content" => Some(text_literal(unescape(text_of(part, self.text)))),
            "interpolation" => {
                let value = part.child_by_field_name("expression");
                Some(value.map_or(Expr::Unknown, |value| self.expression(value, depth)))
            }
            _ => None,
        };
        Expr::Joined(entries(node).into_iter().filter_map(part).collect())
    }

    /// Reads `"step_{}.pt".format(step)`: what is filled in stays unknown.
    fn format_call(&self, node: Node<'_>) -> Option<Expr> {
        let function = node.child_by_field_name("function").filter(|function| function.kind() == "attribute")?;
        let is_format = text_of(function.child_by_field_name("attribute")?, self.text) == "format";
        let text = self.string(function.child_by_field_name("object")?).filter(|_| is_format)?;
        Some(with_holes(&text, '{', |rest| rest.find('}').map(|end| end + 1)))
    }

    /// Reads `folder / name`, `folder + name` and `"step_%d.pt" % step`.
    fn operator_on_text(&self, node: Node<'_>, depth: usize) -> Option<Expr> {
        let side = |field: &str| Some(self.expression(node.child_by_field_name(field)?, depth));
        let (left, right) = (side("left")?, side("right")?);
        match (text_of(node.child_by_field_name("operator")?, self.text), &left) {
            ("/", _) => Some(Expr::Joined(vec![left, text_literal("/".to_owned()), right])),
            ("+", _) => Some(Expr::Joined(vec![left, right])),
            ("%", Expr::Literal(Literal::Text(text))) => Some(with_holes(text, '%', end_of_conversion)),
            _ => None,
        }
    }

    /// Computes a sign, or whole numbers such as `2 ** 10`.
    fn arithmetic(&self, node: Node<'_>, depth: usize) -> Option<Literal> {
        let operator = text_of(node.child_by_field_name("operator")?, self.text);
        let value = |field: &str| match self.expression(node.child_by_field_name(field)?, depth) {
            Expr::Literal(literal) => Some(literal),
            _ => None,
        };
        if node.kind() == "unary_operator" {
            return match (operator, value("argument")?) {
                ("-", Literal::Int(number)) => number.checked_neg().map(Literal::Int),
                ("-", Literal::Float(number)) => Some(Literal::Float(-number)),
                ("+", number @ (Literal::Int(_) | Literal::Float(_))) => Some(number),
                _ => None,
            };
        }
        let (Literal::Int(left), Literal::Int(right)) = (value("left")?, value("right")?) else { return None };
        let result = match operator {
            "+" => left.checked_add(right),
            "-" => left.checked_sub(right),
            "*" => left.checked_mul(right),
            "//" => left.checked_div_euclid(right),
            "**" => left.checked_pow(u32::try_from(right).ok()?),
            "<<" => 1_i64.checked_shl(u32::try_from(right).ok()?).and_then(|factor| left.checked_mul(factor)),
            _ => None,
        };
        result.map(Literal::Int)
    }
}

fn text_literal(text: String) -> Expr {
    Expr::Literal(Literal::Text(text))
}

/// Returns the length of a conversion of `%`, behind it: `d`, `05d`, `(step)d`.
fn end_of_conversion(rest: &str) -> Option<usize> {
    let name = if rest.starts_with('(') { rest.find(')')? + 1 } else { 0 };
    rest[name..].find(|letter: char| letter.is_ascii_alphabetic()).map(|end| name + end + 1)
}

/// Splits a text at its placeholders, which begin with `mark`; `end` finds where the rest of one ends.
fn with_holes(text: &str, mark: char, end: impl Fn(&str) -> Option<usize>) -> Expr {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(mark) {
        let Some(length) = end(&rest[at + 1..]) else { break };
        parts.extend([text_literal(rest[..at].to_owned()), Expr::Unknown]);
        rest = &rest[at + 1 + length..];
    }
    parts.push(text_literal(rest.to_owned()));
    Expr::Joined(parts)
}

fn parse_integer(text: &str) -> Option<Literal> {
    let plain = text.replace('_', "").to_ascii_lowercase();
    let radix = |prefix: &str, radix| plain.strip_prefix(prefix).map(|digits| i64::from_str_radix(digits, radix).ok());
    let number = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2)).unwrap_or(plain.parse().ok());
    number.map(Literal::Int)
}

fn parse_float(text: &str) -> Option<Literal> {
    text.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite()).map(Literal::Float)
}

/// Replaces the escapes that appear in help texts and names.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('\n') | None => {}
            Some(quoted @ ('\\' | '\'' | '"')) => plain.push(quoted),
            Some(other) => plain.extend(['\\', other]),
        }
    }
    plain
}
