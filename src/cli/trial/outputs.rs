//! Keeps the checkpoints of a trial apart from others: a script that finds one of an earlier training goes on from it.

use crate::cli::kept_script::KeptScript;
use crate::cli::{Failure, confirm, say};
use crate::config::command::{AttemptContext, CommandSpec, ScriptCheckpoints, names_run_folder, resolve_pattern};
use crate::config::run::Run;
use crate::init::writes::Writes;
use crate::untrusted::glob::{self, Glob};
use crate::untrusted::text;
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Where the command of a trial saves.
#[derive(Debug)]
pub enum Outputs {
    /// Below each run directory.
    Apart,
    /// In one place outside, where nothing was before the trial.
    Shared {
        /// The pattern of its checkpoints.
        pattern: Glob,
        /// The command's directory.
        directory: PathBuf,
    },
}

impl Outputs {
    /// Finds where the command saves.
    ///
    /// # Errors
    /// Returns an error if checkpoints are there that are not the trial's own.
    pub fn find(run: &Run, rung: usize, keep: bool) -> Result<Self, Failure> {
        let Some((spec, checkpoints)) = run.command.as_ref().and_then(|spec| Some((spec, spec.checkpoints.as_ref()?)))
        else {
            return Ok(Self::Apart);
        };
        let run_dir = PathBuf::from("/{run_dir}");
        let preset = &run.rungs[rung].preset;
        let context = AttemptContext {
            attempt_dir: run_dir.join("attempts/1"),
            run_dir: run_dir.clone(),
            rung_name: run.rungs[rung].name.clone(),
            attempt: 1,
            ..AttemptContext::default()
        };
        let resolved = resolve_pattern(&checkpoints.pattern, preset, &context);
        if Path::new(&resolved).starts_with(glob::escape(&run_dir.display().to_string())) {
            return Ok(Self::Apart);
        }
        let pattern = Glob::parse(&resolved).map_err(|error| {
            Failure::config(format!("checkpoints.match: {}: {error}", text::escape_line(&resolved)))
        })?;
        let there = pattern.find(&spec.directory);
        if let Some(first) = there.first() {
            let problem = format!(
                "{} exists already: the script may go on from it, and the trial removes what it saves there, so --in-place does not \
                 allow that",
                text::path(first)
            );
            return Err(Failure::new(2, format!("{problem}; move it away, or {}", way_out(checkpoints))));
        }
        if keep {
            let problem = "--keep needs checkpoints that each training of the trial writes to a place of its own";
            return Err(Failure::new(2, format!("{problem}; {}", way_out(checkpoints))));
        }
        Ok(Self::Shared { pattern, directory: spec.directory.clone() })
    }

    /// Removes the checkpoints that the trial has made outside its run directories.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn clear(&self) -> io::Result<()> {
        let Self::Shared { pattern, directory } = self else { return Ok(()) };
        pattern.find(directory).iter().try_for_each(|path| {
            let is_folder = fs::symlink_metadata(path)?.is_dir();
            if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
        })
    }

    /// Reports whether a training still finds its checkpoints after the next one has started.
    pub fn are_apart(&self) -> bool {
        matches!(self, Self::Apart)
    }
}

/// Asks before a command is tried that may replace its own earlier outputs: it starts from its beginning.
///
/// # Errors
/// Returns an error if the answer is no, or nobody can be asked.
pub fn require_permission(run: &Run, is_given: bool) -> Result<(), Failure> {
    let Some(spec) = &run.command else { return Ok(()) };
    if is_given || names_run_folder(spec, &run.rungs[run.first_rung()].preset) {
        return Ok(());
    }
    let Some(risk) = Risk::of(spec) else { return Ok(()) };
    let problem = format!("{}: a trial starts the script from its beginning, and {risk}", run.name);
    let way_out = "write {run_dir} into the script's output argument, or into a variable that it reads \
                   (environment: { OUT: \"{run_dir}/out\" }), or allow it with --in-place";
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new(2, format!("{problem};\n{way_out}")));
    }
    say(&format!("{problem}.\nTo avoid that, {way_out}."));
    if confirm("Start the trial?")? { Ok(()) } else { Err(Failure::new(2, format!("nothing was started; {way_out}"))) }
}

/// The reason why a trial may replace earlier outputs of a script.
#[derive(Debug)]
enum Risk {
    /// Nobody has read where it writes.
    Unknown,
    /// Its source writes these files, which exist.
    Exist { script: String, files: Vec<String> },
    /// Its source has these names, which write to places that only a start tells.
    Writes { script: String, names: Vec<String> },
}

impl Risk {
    /// Finds it by the source. A script that the companion keeps saves nothing itself, unless its source says so.
    fn of(spec: &CommandSpec) -> Option<Self> {
        let Some(KeptScript { name: script, program, .. }) = KeptScript::of(spec) else { return Some(Self::Unknown) };
        let Writes { files, others } = Writes::find(&program);
        if !others.is_empty() {
            return Some(Self::Writes { script, names: others });
        }
        let exists = |file: &String| spec.directory.join(file).symlink_metadata().is_ok();
        let files: Vec<String> = files.into_iter().filter(exists).collect();
        (!files.is_empty()).then_some(Self::Exist { script, files })
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| text::escape_line(&names.join(", ")).into_owned();
        match self {
            Self::Unknown => formatter.write_str(
                "nothing in the run file tells it to write into the trial's own folders.\ndownshift redirects a Trainer \
                 of Hugging Face or Lightning; everything else is written where the script always writes, and may replace \
                 earlier outputs",
            ),
            Self::Exist { script, files } => {
                write!(formatter, "{} would replace {}", text::escape_line(script), list(files))
            }
            Self::Writes { script, names } => write!(
                formatter,
                "{} may replace earlier outputs: its source has {}",
                text::escape_line(script),
                list(names)
            ),
        }
    }
}

fn way_out(checkpoints: &ScriptCheckpoints) -> String {
    let name = Path::new(&checkpoints.pattern).file_name().map(|name| name.to_string_lossy().into_owned());
    format!(
        "write {{run_dir}} into the script's output argument and into checkpoints.match, such as \
         `--output_dir={{run_dir}}/out` and `{{run_dir}}/out/{}`",
        text::escape_line(&name.unwrap_or_default())
    )
}

#[cfg(test)]
mod tests {
    use super::Risk;
    use crate::config::run::{AsWritten, Run, Source};
    use std::fs;

    /// Returns what a trial of this script may replace, in a folder that holds `model.pt` if it `has_model`.
    fn risk(script: &str, has_model: bool) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.py"), script).unwrap();
        if has_model {
            fs::write(folder.path().join("model.pt"), "weights").unwrap();
        }
        let text = "name: loop\ntask: command\ncommand: [python, train.py]\n";
        let source = Source { file: "run.yaml", text, base: folder.path(), overrides: &[] };
        let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
        Risk::of(run.command.as_ref().unwrap()).map(|risk| risk.to_string())
    }

    #[test]
    fn a_trial_asks_only_where_something_may_be_replaced() {
        let kept = "import downshift\nrun = downshift.attach(model)\nfor batch in run.batches(data, epochs=3):\n    run.step(loss)\n";
        assert_eq!(risk(kept, false), None);
        let saves = format!("{kept}torch.save(model.state_dict(), 'model.pt')\n");
        assert_eq!(risk(&saves, false), None);
        let replaces = risk(&saves, true).unwrap();
        assert!(replaces.ends_with("train.py would replace model.pt"), "{replaces}");
        let writes = risk(&format!("{kept}frame.to_csv('losses.csv')\n"), false).unwrap();
        assert!(writes.ends_with("may replace earlier outputs: its source has to_csv"), "{writes}");
        let plain = risk("print('step 1 loss 2')\n", false).unwrap();
        assert!(plain.ends_with("may replace earlier outputs"), "{plain}");
        let trainer = "from transformers import Trainer\nTrainer(model).train()\n";
        assert_eq!(risk(trainer, false), None, "the companion redirects it");
    }
}
