//! Finds the script in a command: behind python, a launcher, `uv run`, or as the program itself.

use std::path::Path;

/// A command, split at its script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The script.
    pub target: Target,
    /// The index of the first argument that the script gets.
    pub arguments: usize,
    /// Whether a launcher starts it, in one or more processes.
    pub launcher: Option<Launcher>,
    /// The index of the Python interpreter, if the command names one.
    pub interpreter: Option<usize>,
    /// Whether Python starts without its environment variables or site packages (`-I`, `-E`, `-S`), and so without the companion.
    pub isolated: bool,
}

/// The script or program that a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A Python file, as written.
    Script(String),
    /// A module, after `-m`.
    Module(String),
    /// Some other program, which may be a script with a `#!` line.
    Program(String),
}

/// A program that starts training processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `accelerate launch`.
    Accelerate,
    /// `torchrun` and `python -m torch.distributed.run`.
    Torchrun,
    /// `deepspeed`.
    DeepSpeed,
}

impl Invocation {
    /// Returns the file name of the script or program that is started, or the module.
    #[must_use]
    pub fn started(&self) -> &str {
        match &self.target {
            Target::Module(module) => module,
            Target::Script(path) | Target::Program(path) => path.rsplit('/').next().unwrap_or(path),
        }
    }
}

impl Target {
    /// Reports whether two commands start the same script, each from its folder.
    pub fn is_same(&self, folder: &Path, other: &Self, folder_of_other: &Path) -> bool {
        let file = |target: &Self, folder: &Path| match target {
            Self::Script(path) => folder.join(path).canonicalize().ok(),
            Self::Program(path) if path.contains('/') => folder.join(path).canonicalize().ok(),
            Self::Module(_) | Self::Program(_) => None,
        };
        match (file(self, folder), file(other, folder_of_other)) {
            (Some(here), Some(there)) => here == there,
            // A module and a program of the PATH are known by their names; elsewhere they train something else.
            _ if folder.canonicalize().ok() != folder_of_other.canonicalize().ok() => false,
            _ => match (self, other) {
                (Self::Module(here), Self::Module(there)) => here == there,
                (Self::Program(here), Self::Program(there)) => {
                    Path::new(here).file_name() == Path::new(there).file_name()
                }
                _ => false,
            },
        }
    }
}

impl Launcher {
    /// Returns its name, as it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accelerate => "accelerate launch",
            Self::Torchrun => "torchrun",
            Self::DeepSpeed => "deepspeed",
        }
    }
}

/// Options of `uv run` that take a value.
const UV_VALUES: [&str; 14] = [
    "--with",
    "--with-requirements",
    "--with-editable",
    "--python",
    "-p",
    "--extra",
    "--group",
    "--only-group",
    "--project",
    "--directory",
    "--env-file",
    "--index",
    "--index-url",
    "--package",
];
/// Options of python that take a value.
const PYTHON_VALUES: [&str; 3] = ["-X", "-W", "--check-hash-based-pycs"];
/// Programs that start the rest of the command, and how many words of their own they have before options.
const WRAPPERS: [&str; 6] = ["nohup", "nice", "ionice", "stdbuf", "setsid", "time"];

/// Finds the script; `None` if the command names none, such as `python -c …`.
pub fn find_script(command: &[String]) -> Option<Invocation> {
    let mut at = 0;
    loop {
        let word = command.get(at)?;
        if let Some((launcher, from)) = launcher_at(command, at) {
            return launched(command, from, launcher, None);
        }
        let name = word.rsplit('/').next().unwrap_or(word);
        let next = |offset: usize| command.get(at + offset).map_or("", String::as_str);
        match name {
            "env" => at = skip(command, at + 1, &["-u", "-C"], |word| word.contains('=')),
            _ if WRAPPERS.contains(&name) => at = skip(command, at + 1, &["-n", "-c"], |_| false),
            "uv" if next(1) == "run" => at = skip(command, at + 2, &UV_VALUES, |_| false),
            "poetry" | "pdm" | "pipenv" | "rye" | "hatch" if next(1) == "run" => at += 2,
            _ if is_python(name) => return after_python(command, at),
            _ if is_script(word) => return Some(plain(Target::Script(word.clone()), at + 1)),
            "sh" | "bash" | "dash" | "zsh" => {
                at = skip(command, at + 1, &["-o"], |_| false);
                return Some(plain(Target::Program(command.get(at)?.clone()), at + 1));
            }
            _ => return Some(plain(Target::Program(word.clone()), at + 1)),
        }
    }
}

fn plain(target: Target, arguments: usize) -> Invocation {
    Invocation { target, arguments, launcher: None, interpreter: None, isolated: false }
}

/// Reports whether a program is a Python interpreter, by its name.
pub fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|letter| letter.is_ascii_digit() || letter == '.'))
}

/// Returns the index of the first word that is not an option of the program before it.
fn skip(command: &[String], from: usize, with_value: &[&str], also: impl Fn(&str) -> bool) -> usize {
    let mut at = from;
    while let Some(word) = command.get(at).filter(|word| word.starts_with('-') || also(word)) {
        at += 1 + usize::from(with_value.contains(&word.as_str()));
        if word == "--" {
            break;
        }
    }
    at
}

/// Returns the launcher at a place of a command, and the index of the word after it.
fn launcher_at(command: &[String], at: usize) -> Option<(Launcher, usize)> {
    match command.get(at)?.rsplit('/').next()? {
        "accelerate" if command.get(at + 1).is_some_and(|word| word == "launch") => {
            Some((Launcher::Accelerate, at + 2))
        }
        "torchrun" => Some((Launcher::Torchrun, at + 1)),
        "deepspeed" => Some((Launcher::DeepSpeed, at + 1)),
        _ => None,
    }
}

fn after_python(command: &[String], python: usize) -> Option<Invocation> {
    let (mut at, mut isolated) = (python + 1, false);
    let found = loop {
        let word = command.get(at)?;
        match word.as_str() {
            "-m" => break module_of(command, at + 1, python)?,
            "-c" | "-" => return None,
            option if PYTHON_VALUES.contains(&option) => at += 2,
            option if option.starts_with('-') => {
                isolated |= isolates(option);
                at += 1;
            }
            script => {
                // A process that a launcher's name started shows its interpreter first.
                break match launcher_at(command, at) {
                    Some((launcher, from)) => launched(command, from, launcher, Some(python))?,
                    None => plain(Target::Script(script.to_owned()), at + 1),
                };
            }
        }
    };
    Some(Invocation { interpreter: Some(python), isolated, ..found })
}

/// Returns what `python -m` starts: a module, or the script of a launcher.
fn module_of(command: &[String], at: usize, python: usize) -> Option<Invocation> {
    let module = command.get(at)?;
    let launched = |launcher| launched(command, at + 1, launcher, Some(python));
    match module.as_str() {
        "torch.distributed.run" | "torch.distributed.launch" => launched(Launcher::Torchrun),
        "accelerate.commands.launch" => launched(Launcher::Accelerate),
        "deepspeed.launcher.runner" => launched(Launcher::DeepSpeed),
        _ => Some(plain(Target::Module(module.clone()), at + 1)),
    }
}

/// Reports whether an option of Python, such as `-uE`, leaves out its environment variables or site packages.
fn isolates(option: &str) -> bool {
    let has_value = ["--", "-W", "-X"].iter().any(|start| option.starts_with(start));
    !has_value && option.contains(['I', 'E', 'S'])
}

/// Finds the script among a launcher's options, which only the launcher can tell from their values: the first Python
/// file, or the module after `-m`.
fn launched(command: &[String], from: usize, launcher: Launcher, interpreter: Option<usize>) -> Option<Invocation> {
    let rest = command.get(from..)?;
    let at = rest.iter().position(|word| is_script(word) || ["-m", "--module"].contains(&word.as_str()))?;
    let word = &rest[at];
    let (target, used) = if word.starts_with('-') {
        (Target::Module(rest.get(at + 1)?.clone()), 2)
    } else {
        (Target::Script(word.clone()), 1)
    };
    Some(Invocation { target, arguments: from + at + used, launcher: Some(launcher), interpreter, isolated: false })
}

/// Reports whether a word or a path names a Python file.
pub fn is_script(path: impl AsRef<Path>) -> bool {
    path.as_ref().extension().is_some_and(|end| end == "py")
}

#[cfg(test)]
mod tests {
    use super::{Launcher, Target, find_script};

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_script_is_found_behind_whatever_starts_it() {
        let script = |name: &str| Target::Script(name.to_owned());
        let module = |name: &str| Target::Module(name.to_owned());
        for (line, target, first, launcher) in [
            ("python train.py --lr 1", script("train.py"), "--lr", None),
            ("python3.11 -u -X dev src/train.py --lr 1", script("src/train.py"), "--lr", None),
            ("/venv/bin/python -m pkg.train --lr 1", module("pkg.train"), "--lr", None),
            ("uv run --with torch --python 3.11 train.py --lr 1", script("train.py"), "--lr", None),
            ("uv run python train.py --lr 1", script("train.py"), "--lr", None),
            ("env A=1 B=2 nohup python train.py --lr 1", script("train.py"), "--lr", None),
            (
                "accelerate launch --num_processes 2 train.py --lr 1",
                script("train.py"),
                "--lr",
                Some(Launcher::Accelerate),
            ),
            ("torchrun --nproc_per_node 2 -m pkg.train --lr 1", module("pkg.train"), "--lr", Some(Launcher::Torchrun)),
            (
                "/venv/bin/python /venv/bin/torchrun --nproc-per-node 2 train.py --lr 1",
                script("train.py"),
                "--lr",
                Some(Launcher::Torchrun),
            ),
            ("python -m torch.distributed.run train.py --lr 1", script("train.py"), "--lr", Some(Launcher::Torchrun)),
            ("deepspeed --include localhost:0 train.py --lr 1", script("train.py"), "--lr", Some(Launcher::DeepSpeed)),
            ("./train.py --lr 1", script("./train.py"), "--lr", None),
            ("bash -x train.sh --lr 1", Target::Program("train.sh".to_owned()), "--lr", None),
            ("./train_single_gpu.sh --lr 1", Target::Program("./train_single_gpu.sh".to_owned()), "--lr", None),
        ] {
            let command = words(line);
            let found = find_script(&command).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((&found.target, found.launcher), (&target, launcher), "{line}");
            assert_eq!(command[found.arguments], first, "{line}");
        }
        for line in ["python -c print(1)", "python", "torchrun --help", "env"] {
            assert_eq!(find_script(&words(line)), None, "{line}");
        }
    }
    #[test]
    fn a_script_is_the_same_by_any_path_and_behind_any_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let (here, below) = (folder.path(), folder.path().join("src"));
        std::fs::create_dir(&below).unwrap();
        for file in [here.join("train"), below.join("train.py"), below.join("other.py")] {
            std::fs::write(file, "").unwrap();
        }
        let target = |line: &str| find_script(&words(line)).unwrap().target;
        for (line, other, is_same) in [
            ("python src/train.py --lr 1", "torchrun ./src/train.py --lr 2", true),
            ("python src/train.py", "python src/other.py", false),
            ("/usr/bin/python3 ./train", "./train --lr 1", true),
            ("python -m src.train", "python3 -m src.train --lr 1", true),
            ("axolotl train", "/venv/bin/axolotl train", true),
            ("axolotl train", "python src/train.py", false),
        ] {
            assert_eq!(target(line).is_same(here, &target(other), here), is_same, "{line} and {other}");
        }
        assert!(target("python train.py").is_same(&below, &target("python src/train.py"), here));
        for line in ["axolotl train", "bash train.sh", "python -m train"] {
            assert!(!target(line).is_same(&below, &target(line), here), "{line}: another folder, another training");
            assert!(target(line).is_same(&below, &target(line), &here.join("src/../src")), "{line}");
        }
    }
}
