//! Arguments made from dataclasses and signatures: HfArgumentParser over dataclasses, `tyro.cli` over a dataclass or a
//! function. Dataclasses of Hugging Face's own packages come from a list inside downshift.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::hugging_face::{Classes, ListedField};
use super::program::{Place, Program};
use super::python::{Call, Expr, Field, Literal, Shape};
use std::collections::BTreeSet;

/// Nesting of dataclasses and bases that is followed.
const DEPTH: usize = 8;

/// Adds the arguments of every HfArgumentParser.
pub fn collect_hugging_face(program: &Program, classes: &Classes, declared: &mut Declared) {
    for parser in ["HfArgumentParser", "TrlParser"] {
        for (place, call) in program.calls(parser) {
            let given = call.positional.first().or_else(|| call.keyword("dataclass_types"));
            for class in class_names(program, place, given, DEPTH) {
                for field in fields_of(program, classes, &class, declared) {
                    declared.add(Library::HuggingFace, hugging_face_flag(&field));
                }
            }
        }
    }
}

/// Adds the arguments of every `tyro.cli`.
pub fn collect_tyro(program: &Program, classes: &Classes, declared: &mut Declared) {
    let imported = program.mentions("tyro");
    for (_, call) in program.calls("cli").filter(|(_, call)| imported && ["tyro", ""].contains(&call.receiver.as_str()))
    {
        let Some(name) = call.positional.first().and_then(Expr::name) else { continue };
        let fields = match program.definition(name).map(|definition| &definition.shape) {
            Some(Shape::Function(parameters)) => parameters.iter().map(|field| read_field(program, field)).collect(),
            _ => fields_of(program, classes, name, declared),
        };
        add_tyro(program, classes, declared, "", &fields, DEPTH);
    }
}

fn add_tyro(
    program: &Program,
    classes: &Classes,
    declared: &mut Declared,
    prefix: &str,
    fields: &[DataField],
    depth: usize,
) {
    for field in fields {
        let path = format!("{prefix}{}", field.name);
        let is_class = program.definition(&field.of).is_some_and(|it| matches!(it.shape, Shape::Class { .. }));
        match depth.checked_sub(1) {
            Some(depth) if is_class => {
                let inner = fields_of(program, classes, &field.of, declared);
                add_tyro(program, classes, declared, &format!("{path}."), &inner, depth);
            }
            _ => declared.add(Library::Tyro, tyro_flag(&path, field)),
        }
    }
}

/// Returns the fields of a class of Hugging Face's packages, or of one above it: name, kind and default.
pub fn class_defaults(
    program: &Program,
    classes: &Classes,
    class: &str,
    declared: &mut Declared,
) -> Vec<(String, ValueKind, Option<Literal>)> {
    let fields = fields_of(program, classes, class, declared).into_iter().filter(|field| !field.several);
    fields.map(|field| (field.name, field.kind.unwrap_or(ValueKind::Text), field.default)).collect()
}

/// A field of a dataclass, whatever its source.
#[derive(Debug, Clone, PartialEq)]
struct DataField {
    name: String,
    /// The name of its type without `Optional` and `| None`.
    of: String,
    kind: Option<ValueKind>,
    several: bool,
    may_be_none: bool,
    choices: Vec<String>,
    default: Option<Literal>,
    aliases: Vec<String>,
}

/// Returns the names of the dataclasses given to a parser: one, or a tuple or list of them, or a variable.
fn class_names(program: &Program, place: Place, given: Option<&Expr>, depth: usize) -> Vec<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    match (given, depth.checked_sub(1)) {
        (Some(Expr::List(classes)), Some(depth)) => {
            classes.iter().flat_map(|class| class_names(program, place, Some(class), depth)).collect()
        }
        (Some(Expr::Name(name)), Some(depth)) => match program.assigned(place, name) {
            Some(value @ (Expr::List(_) | Expr::Name(_))) => class_names(program, place, Some(value), depth),
            _ => vec![last(name)],
        },
        _ => Vec::new(),
    }
}

/// Returns the fields of a dataclass, those of its bases first.
fn fields_of(program: &Program, classes: &Classes, class: &str, declared: &mut Declared) -> Vec<DataField> {
    let mut fields = Vec::new();
    let mut seen = BTreeSet::new();
    add_fields(program, classes, class, declared, &mut fields, &mut seen);
    fields
}

fn add_fields(
    program: &Program,
    classes: &Classes,
    class: &str,
    declared: &mut Declared,
    fields: &mut Vec<DataField>,
    seen: &mut BTreeSet<String>,
) {
    if seen.len() > DEPTH || !seen.insert(class.to_owned()) {
        return;
    }
    let own = match program.definition(class).map(|definition| &definition.shape) {
        Some(Shape::Class { bases, fields: own }) => {
            for base in bases.iter().filter(|base| *base != class) {
                add_fields(program, classes, base, declared, fields, seen);
            }
            // `class TrainingArguments(transformers.TrainingArguments)` extends the listed one.
            if bases.iter().any(|base| base == class) {
                replace_fields(fields, listed_fields(classes, class, declared));
            }
            own.iter().filter(|field| is_argument(field)).map(|field| read_field(program, field)).collect()
        }
        _ => listed_fields(classes, class, declared),
    };
    replace_fields(fields, own);
}

fn listed_fields(classes: &Classes, class: &str, declared: &mut Declared) -> Vec<DataField> {
    let listed = classes.fields(class);
    declared.packages.extend(listed.iter().map(|(package, _)| (*package).to_owned()));
    listed.into_iter().map(|(_, field)| listed_field(field)).collect()
}

/// Adds fields; one of the same name replaces an earlier one, in its place.
fn replace_fields(fields: &mut Vec<DataField>, new: Vec<DataField>) {
    for field in new {
        match fields.iter_mut().find(|earlier| earlier.name == field.name) {
            Some(earlier) => *earlier = field,
            None => fields.push(field),
        }
    }
}

/// Reports whether a field is an argument: not a class variable, and not `field(init=False)`.
fn is_argument(field: &Field) -> bool {
    let init = match &field.default {
        Some(Expr::Call(call)) => call.keyword("init"),
        _ => None,
    };
    !field.annotation.contains("ClassVar") && init.and_then(Expr::literal) != Some(&Literal::Bool(false))
}

fn read_field(program: &Program, field: &Field) -> DataField {
    let annotation = field.annotation.trim().trim_matches(['"', '\'']);
    let (of, may_be_none) = strip_optional(annotation);
    let call = match &field.default {
        Some(Expr::Call(call)) => Some(call.as_ref()),
        _ => None,
    };
    let value = match call {
        Some(call) => call.keyword("default"),
        None => field.default.as_ref(),
    };
    let place = Place { file: 0, owner: 0, at: usize::MAX };
    let default = value.and_then(|value| program.value(place, value));
    let outer = of.split('[').next().unwrap_or_default().rsplit('.').next().unwrap_or_default();
    let kind =
        ValueKind::of_type(outer).or_else(|| annotation.is_empty().then(|| ValueKind::of_default(default.as_ref())));
    DataField {
        name: field.name.clone(),
        of: of.to_owned(),
        kind,
        several: ["list", "List", "tuple", "Tuple", "Sequence", "dict", "Dict", "set"].contains(&outer),
        may_be_none,
        choices: if outer == "Literal" { literal_choices(of) } else { Vec::new() },
        default,
        aliases: call.map(aliases).unwrap_or_default(),
    }
}

fn listed_field(field: &ListedField) -> DataField {
    DataField {
        name: field.name.clone(),
        of: String::new(),
        kind: Some(field.kind),
        several: false,
        may_be_none: field.default == Some(Literal::None),
        choices: Vec::new(),
        default: field.default.clone(),
        aliases: Vec::new(),
    }
}

/// Removes `Optional[…]` and `| None` from an annotation, and reports whether either was there.
fn strip_optional(annotation: &str) -> (&str, bool) {
    if let Some(inner) = annotation.rsplit_once("Optional[").and_then(|(_, inner)| inner.strip_suffix(']')) {
        return (inner.trim(), true);
    }
    let parts: Vec<&str> = annotation.split('|').map(str::trim).collect();
    match parts[..] {
        [of, "None"] | ["None", of] => (of, true),
        _ => (annotation, false),
    }
}

/// Reads the values of `Literal["a", 2]`.
fn literal_choices(annotation: &str) -> Vec<String> {
    let inside = annotation.split_once('[').map_or("", |(_, inside)| inside.trim_end_matches(']'));
    inside.split(',').map(|choice| choice.trim().trim_matches(['"', '\'']).to_owned()).collect()
}

/// Reads `metadata={"aliases": […]}` and `HfArg(aliases=…)`.
fn aliases(call: &Call) -> Vec<String> {
    let metadata = match call.keyword("metadata") {
        Some(Expr::Dict(entries)) => entries.iter().find(|(key, _)| key == "aliases").map(|(_, value)| value),
        _ => call.keyword("aliases"),
    };
    match metadata {
        Some(Expr::List(aliases)) => aliases.iter().filter_map(Expr::text).map(str::to_owned).collect(),
        Some(alias) => alias.text().map(str::to_owned).into_iter().collect(),
        None => Vec::new(),
    }
}

fn hugging_face_flag(field: &DataField) -> Flag {
    let takes = match field.kind {
        _ if field.several => Takes::Values,
        // Only a Boolean with a default may stand without a value.
        Some(ValueKind::Boolean) if !(field.may_be_none && field.default == Some(Literal::None)) => {
            Takes::OptionalBoolean
        }
        kind => Takes::Value(kind.unwrap_or(ValueKind::Text)),
    };
    let hyphens = Some(field.name.replace('_', "-")).filter(|name| *name != field.name).map(|name| format!("--{name}"));
    let names = [format!("--{}", field.name)].into_iter().chain(hyphens).chain(field.aliases.iter().cloned()).collect();
    let default = field.default.clone().or((takes == Takes::OptionalBoolean).then_some(Literal::Bool(false)));
    Flag { names, key: field.name.clone(), takes, default, choices: field.choices.clone(), subcommand: None }
}

fn tyro_flag(path: &str, field: &DataField) -> Flag {
    let spelled = path.replace('_', "-");
    let takes = match field.kind {
        _ if field.several => Takes::Values,
        Some(ValueKind::Boolean) if field.default.is_some() && !field.may_be_none => {
            let (parents, name) =
                spelled.rsplit_once('.').map_or(("", spelled.as_str()), |(parents, name)| (parents, name));
            let dot = if parents.is_empty() { "" } else { "." };
            Takes::Pair { off: format!("--{parents}{dot}no-{name}") }
        }
        kind => Takes::Value(kind.unwrap_or(ValueKind::Text)),
    };
    let (names, choices) = (vec![format!("--{spelled}"), format!("--{path}")], field.choices.clone());
    Flag { names, key: path.to_owned(), takes, default: field.default.clone(), choices, subcommand: None }
}
