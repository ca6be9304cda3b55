use super::files::FileContent;
use super::{AttemptContext, CommandLaunch, resolve_launch, resolve_pattern};
use crate::config::run::{AsWritten, Run, Source};
use std::path::{Path, PathBuf};

fn run() -> Run {
    let text = include_str!("../../../../../tests/configs/valid/command.yaml");
    let source = Source { file: "command.yaml", text, base: Path::new("/project"), overrides: &[] };
    Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn attempt(run: &Run, rung: usize, checkpoint: Option<&str>) -> AttemptContext {
    AttemptContext {
        run_dir: PathBuf::from("/runs/a[1]"),
        attempt_dir: PathBuf::from("/runs/a[1]/attempts/2"),
        rung_name: run.rungs[rung].name.clone(),
        attempt: 2,
        checkpoint: checkpoint.map(PathBuf::from),
        step: 500,
        length: Some(2000),
        ..AttemptContext::default()
    }
}

fn launch(rung: usize, checkpoint: Option<&str>) -> CommandLaunch {
    let run = run();
    resolve_launch(run.command.as_ref().unwrap(), &run.rungs[rung].preset, &attempt(&run, rung, checkpoint))
}

#[test]
fn a_start_has_the_rungs_knobs_in_arguments_variables_and_files() {
    let started = launch(0, None);
    let words = [
        "python",
        "train.py",
        "--batch=4",
        "--accum=2",
        "--lr=0.00005",
        "--config=/runs/a[1]/attempts/2/rung.json",
        "--output=/runs/a[1]/out",
    ];
    assert_eq!(started.argv, words);
    assert_eq!(started.directory, Path::new("/project/scripts"));
    let variables: Vec<(&str, &str)> =
        started.environment.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(variables, [("OMP_NUM_THREADS", "8"), ("RUN_TAG", "full-3"), ("TOKENIZERS_PARALLELISM", "false")]);
    let files: Vec<(&Path, &str)> = started
        .files
        .iter()
        .map(|file| match &file.content {
            FileContent::Text(text) => (file.path.as_path(), text.as_str()),
            FileContent::Copy { .. } => panic!("a copy"),
        })
        .collect();
    let expected = [
        ("/runs/a[1]/attempts/2/rung.json", r#"{"resolution":1024,"mode":"fast","size":{"height":3}}"#),
        ("/runs/a[1]/attempts/2/sub/words.txt", "{literally}"),
    ];
    assert_eq!(files, expected.map(|(path, text)| (Path::new(path), text)));
}

#[test]
fn a_rung_changes_only_what_it_sets() {
    let (full, accumulate) = (launch(0, None), launch(2, None));
    assert_eq!(accumulate.argv[2..4], ["--batch=2", "--accum=4"]);
    assert_eq!(accumulate.argv[4..], full.argv[4..]);
    assert_eq!(accumulate.environment["RUN_TAG"], "accumulate-3");
    assert!(!launch(3, None).environment.contains_key("TOKENIZERS_PARALLELISM"));
}

#[test]
fn an_argument_that_its_placeholder_leaves_empty_is_left_out() {
    let text = "name: x\ntask: command\ncommand: [python, train.py, '', '{knobs.compile}', '--tag={knobs.tag}']\n\
                knobs: { compile: '', tag: '' }\nladder: [{ name: fast, set: { knobs.compile: --compile } }]\n";
    let source = Source { file: "x.yaml", text, base: Path::new("/project"), overrides: &[] };
    let run = Run::read(&source, &AsWritten).unwrap();
    let argv = |rung: usize| {
        resolve_launch(run.command.as_ref().unwrap(), &run.rungs[rung].preset, &attempt(&run, rung, None)).argv
    };
    assert_eq!(argv(0), ["python", "train.py", "", "--tag="], "an empty argument that is written stays");
    assert_eq!(argv(1), ["python", "train.py", "", "--compile", "--tag="]);
}

#[test]
fn a_default_of_the_script_is_passed_only_where_its_knob_has_another_value() {
    let read = |more: &str, overrides: &[(String, String)]| {
        let text = format!(
            "name: x\ntask: command\ncommand: [python, train.py]\n\
             defaults: {{ '--batch={{training.micro_batch}}': 8, '--ckpt={{knobs.ckpt}}': null{more} }}\n\
             training: {{ micro_batch: 8 }}\nknobs: {{ ckpt: null }}\n\
             ladder: [{{ name: small, set: {{ training.micro_batch: 4, knobs.ckpt: 'True' }} }}]\n"
        );
        let source = Source { file: "x.yaml", text: &text, base: Path::new("/project"), overrides };
        Run::read(&source, &AsWritten).map_err(|refusal| refusal.to_string())
    };
    let argv = |run: &Run, rung: usize| {
        resolve_launch(run.command.as_ref().unwrap(), &run.rungs[rung].preset, &attempt(run, rung, None)).argv
    };
    let run = read("", &[]).unwrap();
    assert_eq!(argv(&run, 0), ["python", "train.py"]);
    assert_eq!(argv(&run, 1), ["python", "train.py", "--batch=4", "--ckpt=True"]);
    let set = read("", &[("training.micro_batch".to_owned(), "2".to_owned())]).unwrap();
    assert_eq!(argv(&set, 0), ["python", "train.py", "--batch=2"], "an override counts as a change");
    let kept = Source { file: "run.yaml", text: &run.to_yaml(), base: Path::new("/"), overrides: &[] };
    assert_eq!(argv(&Run::reopen(&kept).unwrap(), 1), argv(&run, 1));
    for (more, wanted) in [
        (", '--x': 1", "it names no knob, or several"),
        (", '--x={training.micro_batch}{knobs.ckpt}': 1", "it names no knob, or several"),
        (", '--x={knobs.other}': 1", "names no knob of this file"),
    ] {
        let refusal = read(more, &[]).unwrap_err();
        assert!(refusal.contains("x.yaml:4:") && refusal.contains(wanted), "{refusal}");
    }
}

#[test]
fn a_resumed_start_adds_the_checkpoint() {
    let resumed = launch(0, Some("/runs/a[1]/out/checkpoint-500"));
    assert_eq!(resumed.argv.last().unwrap(), "--resume_from_checkpoint=/runs/a[1]/out/checkpoint-500");
    assert_eq!(resumed.environment["FROM_STEP"], "500");
    assert!(!launch(0, None).environment.contains_key("FROM_STEP"));
}

#[test]
fn nothing_filled_into_a_file_pattern_acts_as_a_pattern() {
    let run = run();
    let spec = run.command.as_ref().unwrap();
    let pattern = &spec.checkpoints.as_ref().unwrap().pattern;
    let resolved = resolve_pattern(pattern, &run.rungs[0].preset, &attempt(&run, 0, None));
    assert_eq!(resolved, "/runs/a[[]1]/out/checkpoint-*");
    assert!(spec.resumes());
}

#[test]
fn a_knob_of_the_trainer_that_no_text_takes_is_refused_with_its_line() {
    let read = |command: &str, training: &str| {
        let text = format!(
            "name: x\ntask: command\ncommand: [python, train.py{command}]\n\
             training: {{ steps: 300, micro_batch: 4, seed: 3{training} }}\noptimizer: {{ lr: 0.1 }}\nknobs: {{ own: 1 }}\n"
        );
        let source = Source { file: "x.yaml", text: &text, base: Path::new("/project"), overrides: &[] };
        Run::read(&source, &AsWritten).map_err(|refusal| refusal.to_string())
    };
    read("", "").unwrap_or_else(|refusal| panic!("its length, batch, rate, seed and own knobs: {refusal}"));
    let refusal = read("", ", memory_cleanup_every: 50").unwrap_err();
    assert!(refusal.starts_with("x.yaml:4:"), "{refusal}");
    assert!(
        refusal.contains("training.memory_cleanup_every: no argument, variable or file takes this knob"),
        "{refusal}"
    );
    read(", '{training.memory_cleanup_every}'", ", memory_cleanup_every: 50").unwrap();
    let kept = read(", '{training.precision}'", ", precision: bf16").unwrap();
    assert_eq!(kept.preset_tree(0)["training"]["precision"], "bf16");
}
