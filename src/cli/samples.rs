//! `samples`: what the model did at its evaluations, as text, as JSON, or copied into a folder.

use super::{Failure, Format, Outcome, Which, find_run, line};
use crate::format::{count, counted, figure, percent};
use crate::store::reader::Reader;
use crate::store::run_dir::{RunDir, write_whole};
use crate::store::samples::{self, StoredSample, StoredSet, WHOLE_TEXT};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use clap::Args;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `samples`.
#[derive(Debug, Args)]
pub struct SamplesArgs {
    #[command(flatten)]
    which: Which,
    /// The step; defaults to the newest with samples
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Copy the samples with their pictures into a folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn samples(args: &SamplesArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.which.run.as_deref())?;
    let steps = samples::steps(run.path());
    let sets = chosen(&run, &steps, args.step)?;
    if let Some(out) = &args.out {
        return copy(&sets, out);
    }
    if args.format == Format::Json {
        let sets: Vec<Value> = sets.iter().map(to_json).collect();
        line!("{}", serde_json::to_string_pretty(&json!({ "steps": steps, "sets": sets }))?);
        return Ok(0);
    }
    if !steps.is_empty() {
        let shown: Vec<String> = steps.iter().map(|step| count(*step)).collect();
        line!("steps with samples: {}", shown.join(", "));
    }
    sets.iter().for_each(print_set);
    Ok(0)
}

/// Returns the samples of the step asked for, else of the newest step and the files of the run file's pattern.
fn chosen(run: &RunDir, steps: &[u64], step: Option<u64>) -> Result<Vec<StoredSet>, Failure> {
    let unreadable = |step: u64| {
        move |error| Failure::new(1, format!("the samples of step {} cannot be read: {error}", count(step)))
    };
    if let Some(step) = step {
        if !steps.contains(&step) {
            let text = format!("{} has no samples of step {}; list them with `samples`", run.name(), count(step));
            return Err(Failure::new(2, text));
        }
        return Ok(vec![samples::read(run.path(), step, WHOLE_TEXT).map_err(unreadable(step))?]);
    }
    let mut sets = matching(run)?;
    if let Some(newest) = steps.first() {
        sets.insert(0, samples::read(run.path(), *newest, WHOLE_TEXT).map_err(unreadable(*newest))?);
    }
    if sets.is_empty() {
        let text = format!("{} has no samples yet; they are written at its evaluations", run.name());
        return Err(Failure::new(1, text));
    }
    Ok(sets)
}

/// Returns the files of the run file's pattern, on the rung and in the attempt that the run is in.
fn matching(run: &RunDir) -> Result<Vec<StoredSet>, Failure> {
    let config = run.run()?;
    let Some(command) = &config.command else { return Ok(Vec::new()) };
    let status = Reader::open(run).ok().and_then(|reader| reader.status());
    let (rung, attempt) = status.map_or((0, 1), |status| (status.rung, status.attempts));
    let rung = &config.rungs[rung.min(config.rungs.len() - 1)];
    let files = samples::matching(run.path(), command, (&rung.name, &rung.preset), attempt).into_iter();
    Ok(files.map(|file| file.read(WHOLE_TEXT)).collect())
}

fn to_json(set: &StoredSet) -> Value {
    let sample = |stored: &StoredSample| {
        let mut value = json!(stored.sample);
        value["image"] = json!(stored.picture);
        value
    };
    let samples: Vec<Value> = set.samples.iter().map(sample).collect();
    json!({ "step": set.step, "samples": samples, "confusion": set.confusion })
}

fn print_set(set: &StoredSet) {
    if let Some(step) = set.step {
        line!("step {}: {}", count(step), counted(set.samples.len() as u64, "sample"));
    }
    for stored in &set.samples {
        print_sample(stored);
    }
}

fn print_sample(StoredSample { sample, picture }: &StoredSample) {
    let facts = [
        sample.name.clone(),
        sample.label.as_ref().map(|label| format!("label {label}")),
        sample.answer.as_ref().map(|answer| format!("answer {answer}")),
        sample.confidence.map(|share| percent(f64::from(share))),
        sample.loss.map(|loss| format!("loss {}", figure(f64::from(loss)))),
        picture.as_deref().map(text::path),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if !facts.is_empty() {
        line!("  {}", facts.join("  "));
    }
    for (word, text) in [("prompt", &sample.prompt), ("text", &sample.text)] {
        if let Some(text) = text {
            line!("  {word}: {}", text.replace('\n', "\n    "));
        }
    }
}

/// The file that lists the copied samples.
const LIST: &str = "samples.json";

/// Refuses a folder that lists pictures which the new list leaves out: they would stay there without a meaning.
fn refuse_other_pictures(names: &BTreeMap<PathBuf, PathBuf>, list: &Path) -> Result<(), Failure> {
    let text = file::read(list, Limit::Record).unwrap_or_default();
    let there: Value = serde_json::from_slice(&text).unwrap_or_default();
    let samples = there.as_array().into_iter().flatten().filter_map(|set| set["samples"].as_array()).flatten();
    let mut pictures = samples.filter_map(|sample| sample["image"].as_str());
    let Some(other) = pictures.find(|picture| !names.values().any(|name| name == Path::new(picture))) else {
        return Ok(());
    };
    let (list, other) = (text::path(list), text::escape_line(other));
    Err(Failure::new(2, format!("{list} lists pictures of other samples, such as {other}; choose another folder")))
}

/// Copies sets and pictures under the names that they have in the run; numbers a name that another picture has.
fn copy(sets: &[StoredSet], out: &Path) -> Outcome {
    let wrong = |path: &Path, error: std::io::Error| Failure::new(1, format!("{}: {error}", text::path(path)));
    fs::create_dir_all(out).map_err(|error| wrong(out, error))?;
    let list = out.join(LIST);
    let names = name_copies(sets);
    refuse_other_pictures(&names, &list)?;
    for (picture, name) in &names {
        let content = file::read(picture, Limit::Picture).map_err(|error| wrong(picture, error.into()))?;
        let to = out.join(name);
        write_whole(&to, &content).map_err(|error| wrong(&to, error))?;
    }
    let sets: Vec<Value> = sets.iter().map(|set| to_json(&beside(set, &names))).collect();
    let content = serde_json::to_vec_pretty(&sets)?;
    write_whole(&list, &content).map_err(|error| wrong(&list, error))?;
    line!("wrote {LIST} and {} to {}", counted(names.len() as u64, "picture"), text::path(out));
    Ok(0)
}

/// Returns the name of each picture's copy: its own, or `NAME-2.png` if another picture has that one.
fn name_copies(sets: &[StoredSet]) -> BTreeMap<PathBuf, PathBuf> {
    let (mut names, mut used) = (BTreeMap::new(), BTreeSet::new());
    for picture in sets.iter().flat_map(|set| &set.samples).filter_map(|sample| sample.picture.as_ref()) {
        let (Some(stem), false) = (picture.file_stem(), names.contains_key(picture)) else { continue };
        let numbered = |number: u64| {
            let mut name = stem.to_owned();
            if number > 1 {
                name.push(format!("-{number}"));
            }
            let mut name = PathBuf::from(name);
            if let Some(ending) = picture.extension() {
                name.as_mut_os_string().push(".");
                name.as_mut_os_string().push(ending);
            }
            name
        };
        let free = (1..=u64::MAX).map(numbered).find(|name| !used.contains(name));
        if let Some(name) = free {
            used.insert(name.clone());
            names.insert(picture.clone(), name);
        }
    }
    names
}

/// Returns a set whose pictures are named as they are beside it.
fn beside(set: &StoredSet, names: &BTreeMap<PathBuf, PathBuf>) -> StoredSet {
    let rename = |stored: &StoredSample| {
        let picture = stored.picture.as_ref().and_then(|picture| names.get(picture)).cloned();
        StoredSample { picture, ..stored.clone() }
    };
    StoredSet { samples: set.samples.iter().map(rename).collect(), ..set.clone() }
}

#[cfg(test)]
mod tests {
    use super::{copy, name_copies};
    use crate::store::samples::{StoredSample, StoredSet};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_folder_with_pictures_of_other_samples_is_left_alone() {
        let (run, out) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
        let set = |names: &[&str]| {
            let sample = |name: &&str| {
                let picture = run.path().join(name);
                std::fs::write(&picture, name).unwrap();
                StoredSample { picture: Some(picture), ..StoredSample::default() }
            };
            StoredSet { samples: names.iter().map(sample).collect(), ..StoredSet::default() }
        };
        copy(&[set(&["a.png", "b.png"])], out.path()).unwrap();
        copy(&[set(&["a.png", "b.png", "c.png"])], out.path()).expect("more of the same");
        let refused = copy(&[set(&["b.png", "d.png"])], out.path()).unwrap_err();
        assert!(refused.message.contains("pictures of other samples, such as a.png; choose another"), "{refused:?}");
        assert!(!out.path().join("d.png").exists());
    }

    #[test]
    fn two_pictures_of_one_name_have_a_copy_each() {
        let sample = |path: &str| StoredSample { picture: Some(PathBuf::from(path)), ..StoredSample::default() };
        let set =
            |paths: &[&str]| StoredSet { samples: paths.iter().copied().map(sample).collect(), ..StoredSet::default() };
        let names = name_copies(&[set(&["a/x.png", "a/x.png", "a/x-2.png"]), set(&["b/x.png", "c/x"])]);
        let name = |path: &str| names[Path::new(path)].to_str().unwrap();
        assert_eq!(
            [name("a/x.png"), name("a/x-2.png"), name("b/x.png"), name("c/x")],
            ["x.png", "x-2.png", "x-3.png", "x"]
        );
        assert_eq!(names.len(), 4);
    }
}
