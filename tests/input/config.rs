//! Run files: the valid ones must be accepted, and the invalid ones refused with exactly these messages.

use downshift::config::climb::Length;
use downshift::config::knobs::{MomentBits, Watch};
use downshift::config::ladder::Rung;
use downshift::config::problem::Problem;
use downshift::config::run::{OwnedSections, Refusal, ResolvedSections, Run, Source, TaskSections};
use downshift::shipped;
use std::{fs, path::Path};

/// A task that accepts two keys, like a built-in one.
struct Tasks;

impl TaskSections for Tasks {
    fn names(&self) -> Vec<String> {
        ["vision", "lm", "search"].map(str::to_owned).to_vec()
    }

    fn resolve(&self, _: &str, OwnedSections { data, model, .. }: OwnedSections<'_>) -> ResolvedSections {
        let positive = model.get("channels").is_none_or(|channels| channels.as_u64().is_some_and(|count| count > 0));
        let problem = Problem::at("model.channels", "a model needs channels", "write 32");
        (Some((data.clone(), model.clone())), if positive { Vec::new() } else { vec![problem] })
    }
}

fn read(file: &str, text: &str, overrides: &[(String, String)]) -> Result<Run, Refusal> {
    Run::read(&Source { file, text, base: Path::new("/base"), overrides }, &Tasks)
}

#[test]
fn every_invalid_file_is_refused_with_all_its_problems() {
    insta::glob!("../configs/invalid", "*.yaml", |path| {
        let text = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        let refusal = read(&name, &text, &[]).expect_err("must be refused");
        insta::assert_snapshot!(refusal.to_string());
    });
}

#[test]
fn every_valid_file_survives_being_written_and_read_again() {
    let mut seen = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs/valid")).unwrap() {
        let path = entry.unwrap().path();
        let run = read("valid", &fs::read_to_string(&path).unwrap(), &[]).unwrap_or_else(|refusal| panic!("{refusal}"));
        let again = read("run.yaml", &run.to_yaml(), &[]).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(run, again);
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn a_run_that_has_begun_opens_though_a_rung_of_it_can_never_be_used() {
    let wide = "  - { name: wide, from: full, set: { model.channels: 64 } }\n";
    let text = format!("{}{wide}", include_str!("../configs/valid/whole.yaml"));
    let refusal = read("whole.yaml", &text, &[]).unwrap_err().to_string();
    assert!(refusal.starts_with("whole.yaml:28:") && refusal.contains("no shift reaches rung `wide`"), "{refusal}");
    let source = Source { file: "run.yaml", text: &text, base: Path::new("/base"), overrides: &[] };
    assert_eq!(Run::reopen(&source).unwrap_or_else(|refusal| panic!("{refusal}")).rungs.len(), 5);
}

#[test]
fn rungs_build_on_the_rung_they_name() {
    let run = read("whole.yaml", include_str!("../configs/valid/whole.yaml"), &[]).unwrap();
    let [full, accumulate, plain, safe] = &run.rungs[..] else { panic!("four rungs") };
    assert_eq!((full.preset.training.micro_batch, full.preset.training.accumulation), (32, 1));
    assert_eq!((accumulate.preset.training.micro_batch, accumulate.preset.training.accumulation), (16, 2));
    assert_eq!((plain.preset.training.micro_batch, plain.preset.training.fused_kernels), (32, false));
    assert_eq!((safe.preset.training.micro_batch, safe.preset.optimizer.lr), (16, 1.0e-3));
    let state_of = |rung: &Rung| (rung.preset.optimizer.moments, rung.preset.optimizer.offload);
    assert_eq!([full, plain].map(state_of), [(MomentBits::F32, false); 2]);
    assert_eq!([accumulate, safe].map(state_of), [(MomentBits::Eight, true); 2]);
    assert_eq!(run.rung_named("plain"), Some(2));
    assert_eq!(run.rung_named("3"), Some(3));
    assert_eq!(run.rung_named("4"), None);
}

#[test]
fn overrides_from_the_command_line_win_and_are_named_when_wrong() {
    let text = include_str!("../configs/valid/whole.yaml");
    let set = |path: &str, value: &str| [(path.to_owned(), value.to_owned())];
    let run = read("whole.yaml", text, &set("training.epochs", "2")).unwrap();
    assert_eq!(run.rungs[3].preset.training.epochs, Some(2));
    let refusal = read("whole.yaml", text, &set("training.epochs", "two")).unwrap_err();
    assert!(
        refusal
            .to_string()
            .starts_with("--set training.epochs=two: training.epochs: expected a whole number, found two"),
        "{refusal}"
    );
    let refusal = read("whole.yaml", text, &set("optimizer.moments", "8bits")).unwrap_err();
    assert!(refusal.to_string().contains("did you mean `8bit`?"), "{refusal}");
    let refusal = read("whole.yaml", text, &set("trainng.epochs", "2")).unwrap_err();
    assert_eq!(refusal.to_string(), "--set trainng.epochs=2: trainng: unknown key; did you mean `training`?");
    assert_eq!(refusal.subject(), "invalid --set");
    let refusal = read("whole.yaml", text, &set("watch", "{ hang: { first_stps: 3 } }")).unwrap_err();
    assert!(refusal.lines.iter().all(|line| line.starts_with("--set watch=")), "{refusal}");
    let broken = format!("{text}\ntrainng: {{}}\n");
    let refusal = read("whole.yaml", &broken, &set("trainng.epochs", "2")).unwrap_err();
    assert!(refusal.lines.iter().any(|line| line.starts_with("whole.yaml:")), "the file has it too: {refusal}");
    assert_eq!(refusal.subject(), "invalid run file");
}

#[test]
fn only_the_knobs_that_the_file_of_a_command_writes_count() {
    let text = include_str!("../configs/valid/command.yaml");
    let run = read("command.yaml", text, &[]).unwrap_or_else(|refusal| panic!("{refusal}"));
    let yaml = run.to_yaml();
    for burn in ["precision", "betas", "gradient_checkpointing", "proven_after", "seed", "evaluation", "moments"] {
        assert!(!yaml.contains(burn), "{burn} in {yaml}");
    }
    let environment = |rung: usize| run.preset_tree(rung)["environment"].clone();
    assert_eq!(environment(0)["OMP_NUM_THREADS"], "8", "a number is its text");
    assert_eq!(environment(2)["PYTORCH_ALLOC_CONF"], "expandable_segments:True", "inherited");
    assert_eq!(environment(3).get("TOKENIZERS_PARALLELISM"), None, "null removes a variable");
    assert_eq!(run.preset_tree(3)["knobs"]["size"]["height"], 2);
    assert_eq!(run.command.as_ref().unwrap().directory, Path::new("/base/scripts"));
    let smallest = read("x", "name: x\ntask: command\ncommand: [train]\n", &[]).unwrap();
    assert_eq!(smallest.preset_tree(0), serde_json::json!({}));
}

#[test]
fn a_knob_set_on_the_command_line_must_reach_the_command() {
    let text = include_str!("../configs/valid/command.yaml");
    let set = |path: &str, value: &str| [(path.to_owned(), value.to_owned())];
    let run = read("command.yaml", text, &set("knobs.resolution", "512")).unwrap();
    assert_eq!(run.preset_tree(0)["knobs"]["resolution"], 512);
    assert!(read("command.yaml", text, &set("environment.NEW", "x")).is_ok(), "a variable always does");
    for (path, wrong) in [
        ("training.seed", "no argument, variable or file takes this knob"),
        ("training.micro_bach", "did you mean `micro_batch`?"),
    ] {
        let refusal = read("command.yaml", text, &set(path, "3")).unwrap_err().to_string();
        assert!(refusal.starts_with(&format!("--set {path}=3: {path}: ")) && refusal.contains(wrong), "{refusal}");
        assert_eq!(refusal.lines().count(), 1, "{refusal}");
    }
}

#[test]
fn null_drops_the_climb_plan_and_a_number_that_is_too_large_is_not_repeated() {
    let text = include_str!("../configs/valid/whole.yaml");
    let set = |path: &str, value: &str| [(path.to_owned(), value.to_owned())];
    assert!(!read("whole.yaml", text, &[]).unwrap().plan.is_empty());
    for path in ["climb.plan", "climb"] {
        assert!(read("whole.yaml", text, &set(path, "null")).unwrap().plan.is_empty(), "{path}");
    }
    let refusal = read("whole.yaml", text, &set("training.micro_batch", "1e30")).unwrap_err().to_string();
    assert!(refusal.ends_with("expected a whole number, found 1e+30; write a smaller one, such as 32"), "{refusal}");
}

#[test]
fn shipped_run_files_write_out_every_setting_of_the_keeper_with_its_default() {
    // The file of a command is an example of its own sections.
    for name in shipped::names().into_iter().filter(|name| *name != "command") {
        let (file, text) = shipped::run_file(Path::new(name)).unwrap();
        let run = read(file, text, &[]).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(run.watch, Watch { hang_min: run.watch.hang_min, ..Watch::default() }, "{file}");
        let settings = serde_json::to_value(Watch::default()).unwrap();
        let mut keys: Vec<String> = Vec::new();
        for (key, value) in settings.as_object().unwrap() {
            keys.push(format!("\n  {key}:"));
            keys.extend(value.as_object().into_iter().flatten().map(|(below, _)| format!("\n    {below}: ")));
        }
        for key in keys {
            assert!(text.contains(&key), "{file} does not write `{}` out", key.trim());
        }
    }
}

/// Returns the names of a run's planned rungs, in order.
fn planned(run: &Run) -> Vec<&str> {
    run.plan.iter().map(|stage| run.rungs[stage.rung].name.as_str()).collect()
}

#[test]
fn every_size_begins_in_safe_mode_and_ends_at_full_speed() {
    let (file, text) = shipped::run_file(Path::new("sizes")).unwrap();
    for (variant, safe, plain) in [("small", 5, 3), ("medium", 10, 20), ("large", 10, 20), ("conservative", 10, 10)] {
        let run = read(file, text, &[("variant".to_owned(), variant.to_owned())]);
        let run = run.unwrap_or_else(|refusal| panic!("{variant}: {refusal}"));
        assert_eq!(planned(&run), ["safe", "plain", "full"], "{variant}");
        let lengths: Vec<_> = run.plan.iter().map(|stage| stage.length).collect();
        assert_eq!(lengths, [Some(Length::Epochs(safe)), Some(Length::Epochs(plain)), None], "{variant}");
        assert_eq!(run.first_rung(), run.rung_named("safe").unwrap(), "{variant}");
    }
}

#[test]
fn the_plan_in_the_comment_of_the_fine_tuning_file_is_valid_and_trains_the_head_first() {
    let (file, text) = shipped::run_file(Path::new("finetune")).unwrap();
    let (mut changed, comment) = (String::new(), "#   climb: {");
    for line in text.lines() {
        let line = if line.starts_with(comment) { line.trim_start_matches(['#', ' ']) } else { line };
        changed.push_str(line);
        changed.push('\n');
    }
    assert_eq!(text.matches(comment).count(), 1);
    for variant in [None, Some("gpt2")] {
        let overrides: Vec<_> = variant.map(|name: &str| ("variant".to_owned(), name.to_owned())).into_iter().collect();
        let run = read(file, &changed, &overrides).unwrap_or_else(|refusal| panic!("{variant:?}: {refusal}"));
        assert_eq!(planned(&run), ["a", "b-ultra-safe", "b"], "{variant:?}");
        for pair in run.plan.windows(2) {
            assert!(run.barrier(pair[0].rung, pair[1].rung).is_none(), "{variant:?}: {pair:?}");
        }
    }
}
