//! The files that a script saves by itself: `torch.save(state, f"{args.out}/step_{step}.pt")`.

use super::program::{Place, Program};
use super::python::{Call, Expr, Literal};
use crate::config::command::template::escape;

/// Nesting of expressions and names that is followed.
const DEPTH: usize = 12;
/// Parts of a path that are read.
const PARTS: usize = 64;
/// Endings of a file that is renamed once it is written.
const TEMPORARY: [&str; 5] = [".tmp", ".temp", ".partial", ".part", ".new"];
/// Words before a number, or in the name that holds it, that say what it counts.
const COUNTS: [&str; 5] = ["step", "iter", "epoch", "checkpoint", "ckpt"];
/// Words in the name of a file that holds the newest state, and is overwritten by each save.
const NEWEST: [&str; 7] = ["last", "latest", "newest", "checkpoint", "ckpt", "state", "resume"];

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
    let safetensors =
        program.calls("save_file").filter(|(_, call)| ["", "safetensors.torch"].contains(&&*call.receiver));
    let paths = torch.chain(safetensors).filter_map(|(place, call)| {
        let mut parts = Vec::new();
        add_parts(program, place, target(call)?, DEPTH, &mut parts);
        Some(parts)
    });
    paths.collect()
}

fn target(call: &Call) -> Option<&Expr> {
    call.positional.get(1).or_else(|| call.keyword("f")).or_else(|| call.keyword("filename"))
}

fn add_parts(program: &Program, place: Place, expr: &Expr, depth: usize, parts: &mut Vec<Part>) {
    let Some(depth) = depth.checked_sub(1).filter(|_| parts.len() < PARTS) else { return parts.push(Part::Unknown) };
    match expr {
        Expr::Literal(Literal::Text(text)) => parts.push(Part::Text(text.clone())),
        // A number that is assigned changes, or a loop would save to one file.
        Expr::Name(name) => match program.assignment(place, name).or_else(|| program.passed(place, name)) {
            Some((_, Expr::Literal(Literal::Int(_)))) | None => parts.push(Part::Name(name.clone())),
            Some((at, value)) => add_parts(program, at, value, depth, parts),
        },
        Expr::Joined(joined) => joined.iter().for_each(|part| add_parts(program, place, part, depth, parts)),
        Expr::Call(call) if call.function == "join" && call.receiver.ends_with("path") => {
            for (index, part) in call.positional.iter().enumerate() {
                if index > 0 {
                    parts.push(Part::Text("/".to_owned()));
                }
                add_parts(program, place, part, depth, parts);
            }
        }
        Expr::Call(call) if ["Path", "str", "fspath"].contains(&call.function.as_str()) => {
            match call.positional.first() {
                Some(inner) => add_parts(program, place, inner, depth, parts),
                None => parts.push(Part::Unknown),
            }
        }
        _ => parts.push(Part::Unknown),
    }
}

/// The files of a script's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFiles {
    /// Their pattern, with placeholders.
    pub pattern: String,
    /// Each save has a file of its own, with a number in its name.
    pub is_numbered: bool,
}

impl SavedFiles {
    /// Returns the checkpoints among saved paths: numbered files, or else one that is named after the newest state; none if
    /// no path is known well enough. `value` tells the value of an argument, with placeholders.
    pub fn find(paths: &[Vec<Part>], value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let found = paths.iter().filter_map(|path| Self::of_path(path, &value));
        // The weights of the best evaluation may be saved beside them.
        found.max_by_key(|found| found.is_numbered)
    }

    fn of_path(path: &[Part], value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let (mut pattern, mut counts) = (String::new(), false);
        for part in path {
            let (text, name) = match part {
                Part::Text(text) => (Some(escape(text)), ""),
                Part::Name(name) => (value(name), name.as_str()),
                Part::Unknown => (None, ""),
            };
            if let Some(text) = text {
                pattern.push_str(&text);
            } else if !(*part == Part::Unknown && pattern.ends_with('*')) {
                // `{step + 1}` is one value.
                counts |= is_count(pattern.rsplit('/').next().unwrap_or_default(), name);
                pattern.push('*');
            }
        }
        let pattern = final_name(&pattern).to_owned();
        let (folder, file) = pattern.rsplit_once('/').unwrap_or(("", &pattern));
        let is_newest = NEWEST.iter().any(|word| file.to_lowercase().contains(word));
        let is_known = match file.matches('*').count() {
            0 => is_newest,
            // Any other value would match files that are no checkpoints.
            1 => counts,
            _ => false,
        };
        // `*` in the folder could match the checkpoints of other runs.
        let is_numbered = file.contains('*');
        (is_known && !folder.contains('*')).then_some(Self { pattern, is_numbered })
    }
}

/// Returns the name that a file gets once it is complete: `model.pt` of `model.pt.tmp`.
pub fn final_name(path: &str) -> &str {
    TEMPORARY.iter().find_map(|ending| path.strip_suffix(ending)).unwrap_or(path)
}

/// Reports whether a value counts steps or the like, by the text before it in a file's name or by its own name.
fn is_count(before: &str, name: &str) -> bool {
    let before = before.trim_end_matches(['-', '_', '=', '.', 's']).to_lowercase();
    let name = name.to_lowercase();
    COUNTS.iter().any(|word| before.ends_with(word) || name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::{SavedFiles, saved_paths};
    use crate::init::program::Program;

    fn found(body: &str) -> Option<(String, bool)> {
        let text = format!("import torch\nNAME = 'last.pt'\ndef train(args, step):\n{body}\n");
        let value = |name: &str| (name == "args.out").then(|| "runs/a".to_owned());
        let found = SavedFiles::find(&saved_paths(&Program::of(&text)), value)?;
        Some((found.pattern, found.is_numbered))
    }

    #[test]
    fn the_pattern_of_saved_files_is_read_in_each_style() {
        let numbered = Some(("runs/a/step_*.pt".to_owned(), true));
        for body in [
            "    torch.save(state, f'{args.out}/step_{step:06d}.pt')",
            "    torch.save(state, os.path.join(args.out, 'step_%d.pt' % step))",
            "    torch.save(state, args.out + '/step_%(step)05d.pt' % values)",
            "    torch.save({'a': 1}, Path(args.out) / 'step_{}.pt'.format(step))",
            "    torch.save(state, args.out + '/step_' + str(step) + '.pt')",
            "    torch.save(state, f'{args.out}/step_{step + 1}.pt')",
            "    path = f'{args.out}/step_{step}.pt'\n    torch.save(x, path + '.tmp')",
            "    path = f'{args.out}/step_{step}'\n    path = path + '.pt'\n    torch.save(x, path)",
            "    torch.save(x, f'{args.out}/best.pt')\n    torch.save(x, f'{args.out}/step_{step}.pt')",
        ] {
            assert_eq!(found(body), numbered, "{body}");
        }
        let helper = "import torch\ndef save(path, model):\n    torch.save(model, path)\ndef main(args):\n    \
                      save(f'{args.out}/step_{step}.pt', model=net)\n";
        let value = |name: &str| (name == "args.out").then(|| "runs/a".to_owned());
        let inside = SavedFiles::find(&saved_paths(&Program::of(helper)), value).unwrap();
        assert_eq!(inside.pattern, "runs/a/step_*.pt", "a function of the script saves");
        let number = "    torch.save(x, f'{args.out}/{global_step}.pt')";
        assert_eq!(found(number), Some(("runs/a/*.pt".to_owned(), true)));
        assert_eq!(
            found("    torch.save(x, os.path.join(args.out, NAME))"),
            Some(("runs/a/last.pt".to_owned(), false))
        );
        assert_eq!(
            found("    save_file(x, filename='ckpt.safetensors')"),
            Some(("ckpt.safetensors".to_owned(), false))
        );
    }

    #[test]
    fn files_that_may_be_no_checkpoints_are_not_proposed() {
        for body in [
            "torch.save(x, path)",
            "torch.save(x, f'{where}/step.pt')",
            "torch.save(x, f'{name}.pt')",
            "torch.save(x, f'{args.out}/{tag}_best.pt')",
            "torch.save(x, 'tokens.pt')",
            "numpy.save('a', x)",
            "torch.save(x)",
            "writer.save_file(x, 'last.pt')",
        ] {
            assert_eq!(found(&format!("    {body}")), None, "{body}");
        }
        let wide = format!("    p = os.path.join({})\n", vec!["p"; 200].join(", "));
        assert_eq!(found(&format!("{}    torch.save(x, p)", wide.repeat(8))), None, "it ends");
    }
}
