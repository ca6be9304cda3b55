//! One pass over a syntax tree that collects the facts of a file. It keeps no stack of its own on the stack of the
//! thread, so nesting cannot overflow it.

use super::expression::{read, read_call, text_of};
use super::{Definition, Expr, Field, Import, Module, OwnedCall, Shape};
use crate::init::constants::builds_settings;
use std::collections::BTreeSet;
use tree_sitter::{Node, Tree};

/// Functions of `os` and `shutil` that replace or remove files, and whose names mean other things elsewhere.
pub const MOVERS: [&str; 7] = ["replace", "remove", "copy", "move", "truncate", "link", "symlink"];
/// Calls that declare arguments or lead to them.
const WANTED: [&str; 15] = [
    "ArgumentParser",
    "HfArgumentParser",
    "TrlParser",
    "add_argument",
    "add_argument_group",
    "add_mutually_exclusive_group",
    "add_parser",
    "argument",
    "batches",
    "cli",
    "field",
    "open",
    "option",
    "parse_args_into_dataclasses",
    "set_defaults",
];
/// Maximum fields of a class and parameters of a function.
const FIELDS: usize = 1_000;

/// Reports whether a call is kept: one of the wanted ones, or one that may save or move a file, such as `torch.save` and a
/// function of the script's own around it.
fn is_wanted(function: &str) -> bool {
    WANTED.contains(&function)
        || builds_settings(function)
        || MOVERS.contains(&function)
        || function.starts_with("save")
}

pub(super) fn collect(tree: &Tree, text: &str) -> Module {
    let mut walk = Walk { text, module: Module::default(), scopes: Vec::new() };
    walk.define(String::new(), Shape::TopLevel);
    let mut cursor = tree.walk();
    loop {
        walk.enter(cursor.node());
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return walk.module;
            }
        }
    }
}

struct Walk<'a> {
    text: &'a str,
    module: Module,
    /// The definition the walk is in, and the byte where it ends.
    scopes: Vec<(usize, usize)>,
}

impl Walk<'_> {
    fn define(&mut self, name: String, shape: Shape) -> usize {
        self.module.definitions.push(Definition { name, shape, mentions: BTreeSet::new() });
        self.module.definitions.len() - 1
    }

    fn enter(&mut self, node: Node<'_>) {
        while self.scopes.last().is_some_and(|(_, end)| *end <= node.start_byte()) {
            self.scopes.pop();
        }
        let owner = self.scopes.last().map_or(0, |(owner, _)| *owner);
        match node.kind() {
            "identifier" => {
                let name = text_of(node, self.text);
                if let Some(definition) = self.module.definitions.get_mut(owner)
                    && !definition.mentions.contains(name)
                {
                    definition.mentions.insert(name.to_owned());
                }
            }
            "call" => {
                let wanted = read_call(node, self.text).filter(|call| is_wanted(&call.function));
                self.module.calls.extend(wanted.map(|call| OwnedCall { owner, at: node.start_byte(), call }));
            }
            "assignment" => self.add_assignment(node, owner),
            "import_statement" | "import_from_statement" => self.add_imports(node),
            "decorated_definition" | "function_definition" | "class_definition" if owner == 0 => {
                self.add_definition(node);
            }
            "if_statement" if owner == 0 && self.is_main_guard(node) => {
                let guard = self.define(String::new(), Shape::MainGuard);
                self.scopes.push((guard, node.end_byte()));
            }
            _ => {}
        }
    }

    fn is_main_guard(&self, node: Node<'_>) -> bool {
        let condition = node.child_by_field_name("condition").map_or("", |condition| text_of(condition, self.text));
        condition.contains("__name__") && condition.contains("__main__")
    }

    fn add_definition(&mut self, node: Node<'_>) {
        let inner =
            if node.kind() == "decorated_definition" { node.child_by_field_name("definition") } else { Some(node) };
        let Some(inner) = inner else { return };
        let Some(name) = inner.child_by_field_name("name") else { return };
        let shape = match (inner.kind(), inner.child_by_field_name("parameters"), inner.child_by_field_name("body")) {
            ("function_definition", Some(parameters), _) => Shape::Function(self.parameters(parameters)),
            ("class_definition", _, Some(body)) => {
                Shape::Class { bases: self.bases(inner), fields: self.class_fields(body) }
            }
            _ => return,
        };
        let definition = self.define(text_of(name, self.text).to_owned(), shape);
        self.scopes.push((definition, node.end_byte()));
    }

    fn parameters(&self, node: Node<'_>) -> Vec<Field> {
        let mut cursor = node.walk();
        let parameters = node.named_children(&mut cursor).take(FIELDS);
        parameters.filter_map(|parameter| self.field(parameter, "name", "value")).collect()
    }

    fn class_fields(&self, body: Node<'_>) -> Vec<Field> {
        let mut cursor = body.walk();
        let statements = body.named_children(&mut cursor).filter(|node| node.kind() == "expression_statement");
        let assignments = statements.filter_map(|statement| statement.named_child(0));
        let annotated =
            assignments.filter(|node| node.kind() == "assignment" && node.child_by_field_name("type").is_some());
        annotated.take(FIELDS).filter_map(|node| self.field(node, "left", "right")).collect()
    }

    /// Reads a parameter or field from the fields of its node that hold name and default.
    fn field(&self, node: Node<'_>, name: &str, default: &str) -> Option<Field> {
        let named = match node.kind() {
            "identifier" => node,
            "typed_parameter" => node.named_child(0)?,
            _ => node.child_by_field_name(name)?,
        };
        let annotation = node.child_by_field_name("type").map_or("", |annotation| text_of(annotation, self.text));
        let default = if node.kind() == "identifier" { None } else { node.child_by_field_name(default) };
        (named.kind() == "identifier").then(|| Field {
            name: text_of(named, self.text).to_owned(),
            annotation: annotation.to_owned(),
            default: default.map(|value| read(value, self.text)),
        })
    }

    fn bases(&self, class: Node<'_>) -> Vec<String> {
        let Some(bases) = class.child_by_field_name("superclasses") else { return Vec::new() };
        let mut cursor = bases.walk();
        let names = bases.named_children(&mut cursor).take(FIELDS).map(|base| read(base, self.text));
        names.filter_map(|base| base.name().map(|name| name.rsplit('.').next().unwrap_or(name).to_owned())).collect()
    }

    fn add_assignment(&mut self, node: Node<'_>, owner: usize) {
        let (Some(left), Some(right)) = (node.child_by_field_name("left"), node.child_by_field_name("right")) else {
            return;
        };
        let mut add = |target: Node<'_>, value: Expr| {
            if let (Expr::Name(target), true) = (read(target, self.text), value != Expr::Unknown) {
                self.module.assignments.entry((owner, target)).or_default().push((node.start_byte(), value));
            }
        };
        if !["pattern_list", "tuple_pattern", "list_pattern"].contains(&left.kind()) {
            return add(left, read(right, self.text));
        }
        // `EPOCHS, BATCH = 40, 16`: each name has its own value.
        let mut cursor = left.walk();
        let targets: Vec<_> = left.named_children(&mut cursor).take(FIELDS).collect();
        if let Expr::List(values) = read(right, self.text)
            && values.len() == targets.len()
            && targets.iter().all(|target| target.kind() != "list_splat_pattern")
        {
            targets.into_iter().zip(values).for_each(|(target, value)| add(target, value));
        }
    }

    fn add_imports(&mut self, node: Node<'_>) {
        let parts = |node: Node<'_>| -> Vec<String> {
            let written = text_of(node, self.text).split_whitespace().next().unwrap_or_default();
            written.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let mut cursor = node.walk();
        let imported: Vec<Vec<String>> =
            node.children_by_field_name("name", &mut cursor).take(FIELDS).map(parts).collect();
        let Some(module) = node.child_by_field_name("module_name") else {
            self.module.imports.extend(imported.into_iter().map(|parts| Import { dots: 0, parts, names: Vec::new() }));
            return;
        };
        let dots = text_of(module, self.text).chars().take_while(|character| *character == '.').count();
        let names = imported.into_iter().map(|name| name.join(".")).collect();
        self.module.imports.push(Import { dots, parts: parts(module), names });
    }
}
