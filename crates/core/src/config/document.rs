//! A YAML file of one type: read whole, or refused with every mistake and its place.

use super::problem::{Problem, max_listed};
use super::{typed, yaml};
use crate::untrusted::text::escape_line;
use serde::de::DeserializeOwned;

/// The mistakes that make a file unusable, a line each: `FILE:LINE:COL: path.of.key: what is wrong; what would work`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct DocumentError(pub Vec<String>);

/// Reads a document; `file` is its name for messages, `check` finds the mistakes that its type does not show.
///
/// # Errors
/// Returns an error that lists every mistake, in the order of the text.
pub fn read<T: DeserializeOwned>(
    file: &str,
    text: &str,
    check: impl Fn(&T) -> Vec<Problem>,
) -> Result<T, DocumentError> {
    let said = |(line, column): yaml::Place, wrong: &str| {
        escape_line(&format!("{file}:{line}:{column}: {wrong}")).into_owned()
    };
    let (tree, mut problems) =
        yaml::parse(text).map_err(|error| DocumentError(vec![said(error.place, &error.message)]))?;
    let (value, more) = typed::read_tree::<T>(&tree);
    problems.extend(more);
    problems.extend(value.iter().flat_map(check));
    match value {
        Some(value) if problems.is_empty() => Ok(value),
        _ => {
            let place = |problem: &Problem| yaml::locate(text, &problem.path, problem.part);
            let listed = problems.iter().take(max_listed(text));
            let mut lines: Vec<(yaml::Place, String)> = listed
                .map(|problem| (place(problem), problem))
                .map(|(place, problem)| (place, said(place, &problem.to_string())))
                .collect();
            lines.sort();
            Err(DocumentError(lines.into_iter().map(|(_, line)| line).collect()))
        }
    }
}
