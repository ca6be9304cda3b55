//! One Python file, reduced to the parts that declare command-line arguments. The file is parsed, never executed.
//!
//! Parsing has a budget that grows with the length of the file, so damaged text ends in an error, not in a wait.
//! Expressions are read to a small depth: an argument's default is a literal, not a program.

mod expression;
mod walk;

pub use expression::{Call, Expr, Literal};
pub use walk::MOVERS;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tree_sitter::{ParseOptions, Parser, Tree};

/// Parser operations allowed for every file, in units of the parser's progress reports.
const BASE_BUDGET: usize = 2_000;
/// Bytes of text that allow one more progress report.
const BYTES_PER_REPORT: usize = 12;

/// The facts of one file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Module {
    /// Its functions and classes; the first entry is the code at the top level.
    pub definitions: Vec<Definition>,
    /// Calls that declare arguments, in file order.
    pub calls: Vec<OwnedCall>,
    /// Assignments to plain and dotted names.
    pub assignments: Assignments,
    /// Modules the file imports.
    pub imports: Vec<Import>,
}

impl Module {
    /// Returns the names that the file defines.
    pub fn names(&self) -> BTreeSet<&str> {
        self.definitions.iter().map(|definition| definition.name.as_str()).collect()
    }
}

/// A function or class at the top level, or the top level itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name; empty for the top level.
    pub name: String,
    /// Its kind.
    pub shape: Shape,
    /// Every identifier in it.
    pub mentions: BTreeSet<String>,
}

/// The kind of a definition.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// The top level of the file.
    TopLevel,
    /// The block under `if __name__ == "__main__"`, which runs in the script itself only.
    MainGuard,
    /// A function with its parameters.
    Function(Vec<Field>),
    /// A class with its bases and annotated fields.
    Class {
        /// The names of its bases.
        bases: Vec<String>,
        /// Its fields.
        fields: Vec<Field>,
    },
}

/// A parameter of a function, or an annotated field of a class.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// The annotation as written; empty without one.
    pub annotation: String,
    /// The default.
    pub default: Option<Expr>,
}

/// A call and the definition it is in.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedCall {
    /// Index into [`Module::definitions`].
    pub owner: usize,
    /// The byte where it begins.
    pub at: usize,
    /// The call.
    pub call: Call,
}

/// Assignments by the definition they are in and the name assigned to, such as `parser` or `self.parser`: the byte
/// where each begins, and the value.
pub type Assignments = BTreeMap<(usize, String), Vec<(usize, Expr)>>;

/// An import of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Leading dots of a relative import.
    pub dots: usize,
    /// The parts of the dotted name.
    pub parts: Vec<String>,
    /// The names after `import` in `from … import …`.
    pub names: Vec<String>,
}

impl Import {
    /// Returns the package that it begins with; empty for a relative import.
    #[must_use]
    pub fn root(&self) -> &str {
        self.parts.first().filter(|_| self.dots == 0).map_or("", String::as_str)
    }
}

/// Why a file's source was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The grammar does not fit the parser library.
    #[error("the Python grammar of this program does not load")]
    Grammar,
    /// The text is too unlike Python to be parsed in reasonable time.
    #[error("its text cannot be parsed as Python")]
    NotPython,
}

/// Parses a file.
///
/// # Errors
/// Returns an error when the text cannot be parsed within its budget.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let tree = parse_tree(text)?;
    Ok(walk::collect(&tree, text))
}

fn parse_tree(text: &str) -> Result<Tree, ParseError> {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_python::LANGUAGE.into()).map_err(|_| ParseError::Grammar)?;
    let mut left = BASE_BUDGET + text.len() / BYTES_PER_REPORT;
    let mut spend = |_: &_| {
        left = left.saturating_sub(1);
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut spend);
    let bytes = text.as_bytes();
    let mut read = |from: usize, _| bytes.get(from..).unwrap_or_default();
    parser.parse_with_options(&mut read, None, Some(options)).ok_or(ParseError::NotPython)
}

#[cfg(test)]
mod tests {
    use super::{Expr, Literal, Shape, parse};
    use proptest::prelude::*;

    #[test]
    fn calls_know_their_definition_and_expressions_their_values() {
        let module = parse(
            "LR = 3e-4\n\
             def options(parser, size: int = 2 ** 10):\n    parser.add_argument('--lr', '-l', default=LR, help='a ' \"b\")\n\
             class A(Base):\n    \"\"\"Doc.\"\"\"\n    x: int = field(default=-1)\n    y: str\n\
             if __name__ == '__main__':\n    parser.add_argument(\"--n\", type=int, default=1_000)\n",
        )
        .unwrap();
        let names: Vec<_> = module.definitions.iter().map(|definition| definition.name.as_str()).collect();
        assert_eq!(names, ["", "options", "A", ""]);
        assert_eq!(module.definitions[3].shape, Shape::MainGuard);
        let Shape::Function(parameters) = &module.definitions[1].shape else { panic!("a function") };
        assert_eq!(parameters[1].annotation, "int");
        assert_eq!(parameters[1].default, Some(Expr::Literal(Literal::Int(1024))));
        let Shape::Class { bases, fields } = &module.definitions[2].shape else { panic!("a class") };
        assert_eq!((bases.as_slice(), fields.len()), (["Base".to_owned()].as_slice(), 2));
        let owners: Vec<_> = module.calls.iter().map(|call| (call.owner, call.call.function.as_str())).collect();
        assert_eq!(owners, [(1, "add_argument"), (2, "field"), (3, "add_argument")]);
        let lr = &module.calls[0].call;
        assert_eq!(lr.receiver, "parser");
        assert_eq!(lr.keyword("default"), Some(&Expr::Name("LR".to_owned())));
        assert_eq!(lr.keyword("help"), Some(&Expr::Literal(Literal::Text("a b".to_owned()))));
        assert_eq!(module.calls[2].call.keyword("default"), Some(&Expr::Literal(Literal::Int(1000))));
    }

    #[test]
    fn imports_are_read_in_all_their_forms() {
        let module =
            parse("import a.b as c, d\nfrom .e import f as g, h\nfrom .. import i\nfrom j.k import *\n").unwrap();
        let read: Vec<_> =
            module.imports.iter().map(|import| (import.dots, import.parts.join("."), import.names.join(","))).collect();
        let wanted = [(0, "a.b", ""), (0, "d", ""), (1, "e", "f,h"), (2, "", "i"), (0, "j.k", "")];
        assert_eq!(read, wanted.map(|(dots, parts, names)| (dots, parts.to_owned(), names.to_owned())));
    }

    #[test]
    fn broken_and_deeply_nested_text_ends() {
        for text in ["f(".repeat(20_000), "[".repeat(100_000), "if x:\n ".repeat(5_000), "x = (1,\n".repeat(10_000)] {
            let _ = parse(&text);
        }
        let module = parse("print 'old'\nparser.add_argument('--lr', default=1e-3)\ndef broken(:\n").unwrap();
        assert_eq!(module.calls.len(), 1, "a mistake elsewhere hides no argument");
    }

    proptest! {
        #[test]
        fn no_text_brings_the_parser_down(text in "(?s)[\\PC\n]{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn no_mix_of_python_brings_the_parser_down(parts in proptest::collection::vec(prop::sample::select(vec![
            "parser.add_argument(", "'--lr'", ", default=", "1e-4", ")", "\n", "    ", "def f(", "x: int", "):\n", "class A(",
            "@dataclass\n", "if __name__ == '__main__':\n", "f'{x", "}'", "\"\"\"", "import ", "from . ", "[", "{", "-", "**", "9"
        ]), 0..60)) {
            let _ = parse(&parts.concat());
        }
    }
}
