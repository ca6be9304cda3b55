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

/// A file that a script saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its path.
    pub path: Vec<Part>,
    /// Its content.
    pub content: Content,
}

/// The content of a saved file, as far as the source tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A training may continue from it.
    State,
    /// The weights alone, without the optimizer and the step.
    Weights,
    /// An optimizer or a schedule alone, which belongs to weights in another file.
    Optimizer,
    /// Tensors in the format that carries weights, which no script takes for the state of a training.
    Tensors,
}

/// The files that a script gives to `torch.save` and the like, in file order.
pub fn saved_files(program: &Program) -> Vec<Saved> {
    let torch = program.calls("save").filter(|(_, call)| call.receiver == "torch");
    let safetensors =
        program.calls("save_file").filter(|(_, call)| ["", "safetensors.torch"].contains(&&*call.receiver));
    let files = torch.chain(safetensors).filter_map(|(place, call)| {
        let mut path = Vec::new();
        add_parts(program, place, target(call)?, DEPTH, &mut path);
        let saved = call.positional.first().or_else(|| call.keyword("obj"));
        let content = match saved {
            _ if call.function == "save_file" => Content::Tensors,
            Some(saved) if holds_weights_alone(program, place, saved, DEPTH) => Content::Weights,
            Some(saved) if holds_optimizer_alone(program, place, saved) => Content::Optimizer,
            _ => Content::State,
        };
        Some(Saved { path, content })
    });
    files.collect()
}

/// Reports whether an object is certainly a model or its weights, and nothing beside them.
fn holds_weights_alone(program: &Program, place: Place, expr: &Expr, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    match expr {
        Expr::Call(call) if call.function == "state_dict" => !is_of_optimizer(&call.receiver),
        Expr::Name(name) => match program.assignment(place, name) {
            Some((at, value @ (Expr::Dict(_) | Expr::Name(_)))) => holds_weights_alone(program, at, value, depth),
            Some((at, value @ Expr::Call(call))) if call.function == "state_dict" => {
                holds_weights_alone(program, at, value, depth)
            }
            _ => is_model(name),
        },
        Expr::Dict(entries) => {
            let is_weights = |(key, value): &(String, Expr)| {
                !is_of_optimizer(key) && holds_weights_alone(program, place, value, depth)
            };
            !entries.is_empty() && entries.iter().all(is_weights)
        }
        _ => false,
    }
}

/// Reports whether an object is certainly the state of an optimizer or a schedule.
fn holds_optimizer_alone(program: &Program, place: Place, expr: &Expr) -> bool {
    let is_state = |expr: &Expr| match expr {
        Expr::Call(call) => call.function == "state_dict" && is_of_optimizer(&call.receiver),
        _ => false,
    };
    match expr {
        Expr::Name(name) => program.assignment(place, name).is_some_and(|(_, value)| is_state(value)),
        expr => is_state(expr),
    }
}

/// Reports whether a name is that of an optimizer, a schedule or a loss scale.
fn is_of_optimizer(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    name == "opt" || ["optim", "sched", "scaler"].iter().any(|part| name.contains(part))
}

/// Reports whether a name is usually that of a model.
fn is_model(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    ["model", "net", "network"].iter().any(|word| name == *word || name.ends_with(&format!("_{word}")))
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
    /// Returns the checkpoints of this content among saved files: numbered ones, or else one that is named after the newest
    /// state; none if no path is known well enough. `value` tells the value of an argument, with placeholders.
    pub fn find(files: &[Saved], content: Content, value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let paths = files.iter().filter(|file| file.content == content);
        let found = paths.filter_map(|file| Self::of_path(&file.path, &value));
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

/// Returns the path of a file as a note shows it: `*` for a part that only running the script would tell.
pub fn shown_path(path: &[Part]) -> String {
    let mut shown = String::new();
    for part in path {
        match part {
            Part::Text(text) => shown.push_str(text),
            Part::Name(_) | Part::Unknown if shown.ends_with('*') => {}
            Part::Name(_) | Part::Unknown => shown.push('*'),
        }
    }
    final_name(&shown).to_owned()
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
    use super::{Content, SavedFiles, saved_files, shown_path};
    use crate::init::program::Program;

    fn found(body: &str) -> Option<(String, bool)> {
        let text = format!("import torch\nNAME = 'last.pt'\ndef train(args, step):\n{body}\n");
        let value = |name: &str| (name == "args.out").then(|| "runs/a".to_owned());
        let found = SavedFiles::find(&saved_files(&Program::of(&text)), Content::State, value)?;
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
        let inside = SavedFiles::find(&saved_files(&Program::of(helper)), Content::Weights, value).unwrap();
        assert_eq!(inside.pattern, "runs/a/step_*.pt", "a function of the script saves");
        let number = "    torch.save(x, f'{args.out}/{global_step}.pt')";
        assert_eq!(found(number), Some(("runs/a/*.pt".to_owned(), true)));
        assert_eq!(
            found("    torch.save(x, os.path.join(args.out, NAME))"),
            Some(("runs/a/last.pt".to_owned(), false))
        );
    }

    #[test]
    fn weights_are_told_from_the_state_of_a_training() {
        let cases = [
            ("torch.save(model.state_dict(), 'last.pt')", Content::Weights),
            ("torch.save(self.model, 'last.pt')", Content::Weights),
            ("state = model.state_dict()\ntorch.save(state, 'last.pt')", Content::Weights),
            ("torch.save({'model': model.state_dict(), 'ema': ema_model.state_dict()}, 'last.pt')", Content::Weights),
            ("torch.save({'model': model.state_dict(), 'optimizer': opt.state_dict()}, 'last.pt')", Content::State),
            ("torch.save({'model': model.state_dict(), 'epoch': epoch}, 'last.pt')", Content::State),
            ("torch.save(optimizer.state_dict(), 'last.pt')", Content::Optimizer),
            ("state = {'model': model, 'step': step}\ntorch.save(state, 'last.pt')", Content::State),
            ("torch.save(everything(), 'last.pt')", Content::State),
            ("torch.save(obj=net, f='last.pt')", Content::Weights),
            ("save_file(tensors, 'last.safetensors')", Content::Tensors),
        ];
        for (text, content) in cases {
            let saved = saved_files(&Program::of(text));
            assert_eq!(saved.iter().map(|file| file.content).collect::<Vec<_>>(), [content], "{text}");
        }
        let shown = |text: &str| shown_path(&saved_files(&Program::of(text))[0].path);
        assert_eq!(shown("torch.save(model, f'{out}/{name}{step}.pt.tmp')"), "*/*.pt");
        assert_eq!(shown("torch.save(model, path)"), "*");
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
