//! The files that a script saves by itself: `torch.save(state, f"{args.out}/step_{step}.pt")`.

use super::program::{Place, Program};
use super::python::{Call, Expr, Literal};

/// Nesting of expressions and names that is followed.
const DEPTH: usize = 12;
/// Endings of a file that is renamed once it is written.
const TEMPORARY: [&str; 5] = [".tmp", ".temp", ".partial", ".part", ".new"];

/// A part of a saved file's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Written out.
    Text(String),
    /// A name that may hold an argument, such as `args.out`.
    Name(String),
    /// Known only while the script runs.
    Unknown,
}

/// The paths that a script gives to `torch.save` and the like, in file order.
pub fn saved_paths(program: &Program) -> Vec<Vec<Part>> {
    let torch = program.calls("save").filter(|(_, call)| call.receiver == "torch");
    let safetensors = program.calls("save_file");
    let calls = torch.chain(safetensors);
    calls.filter_map(|(place, call)| Some(parts_of(program, place, target(call)?, DEPTH))).collect()
}

fn target(call: &Call) -> Option<&Expr> {
    call.positional.get(1).or_else(|| call.keyword("f")).or_else(|| call.keyword("filename"))
}

fn parts_of(program: &Program, place: Place, expr: &Expr, depth: usize) -> Vec<Part> {
    let Some(depth) = depth.checked_sub(1) else { return vec![Part::Unknown] };
    let of = |expr: &Expr| parts_of(program, place, expr, depth);
    match expr {
        Expr::Literal(Literal::Text(text)) => vec![Part::Text(text.clone())],
        Expr::Literal(Literal::Int(number)) => vec![Part::Text(number.to_string())],
        Expr::Name(name) => match program.assigned(place, name) {
            // A number that changes is assigned more than once.
            Some(Expr::Literal(Literal::Int(_)) | Expr::Unknown) => vec![Part::Unknown],
            Some(value) => of(value),
            None => vec![Part::Name(name.clone())],
        },
        Expr::Joined(parts) => parts.iter().flat_map(of).collect(),
        Expr::Call(call) if call.function == "join" && call.receiver.ends_with("path") => {
            let slash = || Part::Text("/".to_owned());
            let parts = call.positional.iter().map(of);
            parts.reduce(|path, part| path.into_iter().chain([slash()]).chain(part).collect()).unwrap_or_default()
        }
        Expr::Call(call) if ["Path", "str", "fspath"].contains(&call.function.as_str()) => {
            call.positional.first().map_or_else(|| vec![Part::Unknown], of)
        }
        _ => vec![Part::Unknown],
    }
}

/// Returns the pattern of the newest checkpoints among saved paths, and whether each save has a file of its own; none if
/// no path is known well enough. `value` tells the value of an argument.
pub fn pattern_of(paths: &[Vec<Part>], value: impl Fn(&str) -> Option<String>) -> Option<(String, bool)> {
    let patterns = paths.iter().filter_map(|path| pattern(path, &value));
    // The best weights and the last ones may be saved beside numbered checkpoints.
    patterns.max_by_key(|(_, numbered)| *numbered)
}

fn pattern(path: &[Part], value: impl Fn(&str) -> Option<String>) -> Option<(String, bool)> {
    let mut found = String::new();
    for part in path {
        let text = match part {
            Part::Text(text) => Some(text.clone()),
            Part::Name(name) => value(name),
            Part::Unknown => None,
        };
        match text {
            Some(text) => found.push_str(&text),
            None if found.ends_with('*') => {}
            None => found.push('*'),
        }
    }
    let found = TEMPORARY.iter().find_map(|ending| found.strip_suffix(ending)).unwrap_or(&found).to_owned();
    let (folder, file) = found.rsplit_once('/').unwrap_or(("", &found));
    let is_named = file.chars().any(char::is_alphanumeric) && file.matches('*').count() <= 1;
    // `*` in the folder could match the checkpoints of other runs.
    (is_named && !folder.contains('*')).then(|| (found.clone(), file.contains('*')))
}

#[cfg(test)]
mod tests {
    use super::{pattern_of, saved_paths};
    use crate::init::program::Program;

    #[test]
    fn the_pattern_of_saved_files_is_read_in_each_style() {
        let of = |body: &str| {
            let text = format!("import torch\nNAME = 'last.pt'\ndef train(args, step):\n{body}\n");
            let value = |name: &str| (name == "args.out").then(|| "runs/a".to_owned());
            pattern_of(&saved_paths(&Program::of(&text)), value)
        };
        let numbered = Some(("runs/a/step_*.pt".to_owned(), true));
        assert_eq!(of("    torch.save(state, f'{args.out}/step_{step:06d}.pt')"), numbered);
        assert_eq!(of("    torch.save(state, os.path.join(args.out, 'step_%d.pt' % step))"), numbered);
        assert_eq!(of("    torch.save({'a': 1}, Path(args.out) / 'step_{}.pt'.format(step))"), numbered);
        assert_eq!(of("    torch.save(state, args.out + '/step_' + str(step) + '.pt')"), numbered);
        assert_eq!(of("    path = f'{args.out}/step_{step}.pt'\n    torch.save(x, path + '.tmp')"), numbered);
        let best = "    torch.save(x, f'{args.out}/best.pt')\n    torch.save(x, f'{args.out}/step_{step}.pt')";
        assert_eq!(of(best), numbered, "numbered ones count before the best");
        assert_eq!(of("    torch.save(x, os.path.join(args.out, NAME))"), Some(("runs/a/last.pt".to_owned(), false)));
        assert_eq!(of("    save_file(x, filename='w.safetensors')"), Some(("w.safetensors".to_owned(), false)));
        for unknown in
            ["torch.save(x, path)", "torch.save(x, f'{where}/step.pt')", "numpy.save('a', x)", "torch.save(x)"]
        {
            assert_eq!(of(&format!("    {unknown}")), None, "{unknown}");
        }
    }
}
