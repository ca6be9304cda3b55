//! The user's own DeepSpeed file, checked before a start: its sizes are whole numbers, and the batch sizes multiply to the total.
//! DeepSpeed itself finds both only after it has loaded the model.
//!
//! ```text
//! train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × data-parallel ranks
//! ```
//! The ranks that share a model, by tensor or pipeline parallelism, divide the ranks; how many they are, only the script knows.

use super::CommandLaunch;
use super::files::FileContent;
use super::invocation::{Launcher, find_script};
use super::ranks::Ranks;
use crate::config::settings_file::{Format, SettingsError, SettingsFile};
use crate::untrusted::text;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Arguments that name the file.
const ARGUMENTS: [&str; 4] = ["deepspeed", "deepspeed-config", "deepspeed-config-file", "ds-config"];
const TOTAL: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const ACCUMULATION: &str = "gradient_accumulation_steps";
/// Counts, which DeepSpeed takes as integers only: `4.0` fails.
const COUNTS: [&str; 3] = [TOTAL, MICRO, ACCUMULATION];
/// Sizes, which may be written `5e8`, but have no fraction.
const SIZES: [&str; 14] = [
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.sub_group_size",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    "zero_optimization.offload_param.max_in_cpu",
    "zero_optimization.offload_optimizer.buffer_count",
    "aio.block_size",
    "aio.queue_depth",
    "aio.thread_count",
];

/// A mistake in a DeepSpeed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file, with the line if one value is wrong.
    pub place: String,
    /// The kind of mistake.
    pub wrong: Wrong,
}

/// The kinds of mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// It cannot be read.
    Unreadable(String),
    /// A value has a fraction where a whole number must stand.
    Fraction {
        /// Its key.
        key: &'static str,
        /// Its value, as written.
        value: String,
        /// The whole number that was probably meant.
        whole: String,
    },
    /// The batch sizes do not multiply to the total.
    Product {
        /// The total.
        total: u64,
        /// The micro-batch.
        micro: u64,
        /// The accumulation.
        accumulation: u64,
        /// The ranks, if they are known.
        ranks: Option<u64>,
    },
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.place;
        match &self.wrong {
            Wrong::Unreadable(why) => formatter.write_str(why),
            Wrong::Fraction { key, value, whole } => {
                write!(
                    formatter,
                    "{place}: `{key}` is {value}, and DeepSpeed takes whole numbers only there; write {whole}"
                )
            }
            Wrong::Product { total, micro, accumulation, ranks } => {
                let product = micro.saturating_mul(*accumulation);
                write!(formatter, "{place}: `{TOTAL}` is {total}, but {micro} × {accumulation}")?;
                match ranks {
                    Some(ranks) => {
                        let product = product.saturating_mul(*ranks);
                        write!(
                            formatter,
                            " × {ranks} (micro-batch, accumulation, ranks) are {product}; write {product}"
                        )?;
                    }
                    None => write!(formatter, " (micro-batch, accumulation) are {product}, which does not divide it")?,
                }
                formatter.write_str(", or \"auto\" with the Trainer of transformers")
            }
        }
    }
}

/// Returns every mistake in the DeepSpeed files that a start names, on this many nodes. `variable` returns a variable that the
/// command inherits.
#[must_use]
pub fn check_deepspeed(
    launch: &CommandLaunch,
    nodes: u32,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<Mistake> {
    let ranks = count_ranks(launch, nodes, variable);
    files_of(launch).iter().flat_map(|path| check_file(launch, path, ranks)).collect()
}

/// Returns the JSON files behind the arguments that name one.
fn files_of(launch: &CommandLaunch) -> Vec<PathBuf> {
    let words = &launch.argv;
    let named = words.iter().enumerate().filter_map(|(at, word)| {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        let name = name.strip_prefix("--")?.replace('_', "-");
        let value = value.or_else(|| words.get(at + 1).map(String::as_str))?;
        ARGUMENTS.contains(&name.as_str()).then_some(value)
    });
    let json = named.filter(|value| Path::new(value).extension().is_some_and(|ending| ending == "json"));
    json.map(|value| launch.directory.join(value)).collect()
}

fn count_ranks(launch: &CommandLaunch, nodes: u32, variable: impl Fn(&str) -> Option<OsString>) -> Option<u64> {
    let own = find_script(&launch.argv).filter(|found| found.launcher == Some(Launcher::DeepSpeed));
    if let Some(found) = own {
        let options = &launch.argv[..found.arguments];
        let number = |name: &str| {
            let mut values = options.iter().zip(options.iter().skip(1)).filter(|(word, _)| word.as_str() == name);
            let written = options.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            written.or_else(|| values.next().map(|(_, value)| value.as_str()))?.parse::<u64>().ok()
        };
        return Some(number("--num_gpus")? * number("--num_nodes").unwrap_or(1));
    }
    let ranks = Ranks::of(launch, variable)?;
    Some(u64::from(ranks.here?) * u64::from(ranks.machines.max(nodes)))
}

fn check_file(launch: &CommandLaunch, path: &Path, ranks: Option<u64>) -> Vec<Mistake> {
    let file = match read(launch, path) {
        Ok(file) => file,
        // A wrong copy is reported with the other files of the run. A missing file may be one that the script writes.
        Err(SettingsError::Value { .. } | SettingsError::Missing(_)) => return Vec::new(),
        Err(error) => {
            let wrong = Wrong::Unreadable(error.to_string());
            return vec![Mistake { place: text::path(path), wrong }];
        }
    };
    let shown = text::path(path);
    let mut mistakes: Vec<Mistake> = Vec::new();
    let counts = COUNTS.iter().map(|key| (*key, true));
    for (key, is_count) in counts.chain(SIZES.iter().map(|key| (*key, false))) {
        if let Some((wrong, line)) = fraction(&file, key, is_count) {
            mistakes.push(Mistake { place: format!("{shown}:{line}"), wrong });
        }
    }
    mistakes.extend(product(&file, ranks).map(|(wrong, line)| Mistake { place: format!("{shown}:{line}"), wrong }));
    mistakes
}

/// Reads the file, or what the run would write in its place. DeepSpeed takes comments and a comma before a bracket, as YAML does.
fn read(launch: &CommandLaunch, path: &Path) -> Result<SettingsFile, SettingsError> {
    let parse = |text: String| {
        let syntax = |source| SettingsError::Syntax { path: path.to_owned(), source };
        let lenient = |text: &str| SettingsFile::parse(text.to_owned(), Format::Yaml).ok();
        SettingsFile::parse(text.clone(), Format::Json).or_else(|wrong| lenient(&text).ok_or(wrong)).map_err(syntax)
    };
    let read = || parse(SettingsFile::read_text(path)?);
    match launch.files.iter().find(|file| file.path == path).map(|file| &file.content) {
        Some(FileContent::Text(text)) => parse(text.clone()),
        Some(copy @ FileContent::Copy { .. }) => match copy.read()? {
            Some(original) => parse(original.patched.text),
            None => read(),
        },
        None => read(),
    }
}

/// Returns what is wrong with a count or a size, and its line.
fn fraction(file: &SettingsFile, key: &'static str, is_count: bool) -> Option<(Wrong, usize)> {
    let (value, written, line) = file.written(key)?;
    // A text is not judged: transformers fills in "auto", and "4" is converted.
    let Value::Number(number) = &value else { return None };
    let meant = number.as_f64().filter(|meant| meant.is_finite())?;
    let is_whole = meant.fract().abs() < f64::EPSILON;
    if number.is_i64() || number.is_u64() || (is_whole && !is_count) {
        return None;
    }
    let whole = format!("{:.0}", meant.trunc());
    Some((Wrong::Fraction { key, value: text::escape_line(written).into_owned(), whole }, line))
}

/// Returns whether the batch sizes multiply to the total, as far as they are numbers, and the line of the total.
fn product(file: &SettingsFile, ranks: Option<u64>) -> Option<(Wrong, usize)> {
    let number = |key: &str| file.value(key)?.as_u64().filter(|number| *number > 0);
    let (total, micro) = (number(TOTAL)?, number(MICRO)?);
    // Where the file leaves it out, DeepSpeed derives it; "auto" is filled in.
    let accumulation = number(ACCUMULATION)?;
    let each = micro.saturating_mul(accumulation);
    let fits = total % each == 0 && ranks.is_none_or(|ranks| ranks % (total / each) == 0);
    let line = file.written(TOTAL)?.2;
    (!fits).then_some((Wrong::Product { total, micro, accumulation, ranks }, line))
}

#[cfg(test)]
mod tests {
    use super::{CommandLaunch, check_deepspeed};
    use std::collections::BTreeMap;

    fn said(words: &[&str], json: &str) -> Vec<String> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("zero3.json"), json).unwrap();
        let launch = CommandLaunch {
            argv: words.iter().map(|word| (*word).to_owned()).collect(),
            directory: place.path().to_owned(),
            environment: BTreeMap::new(),
            files: Vec::new(),
        };
        let folder = format!("{}/", place.path().display());
        check_deepspeed(&launch, 1, |_| None).iter().map(|mistake| mistake.to_string().replace(&folder, "")).collect()
    }

    const TORCHRUN: [&str; 5] = ["torchrun", "--nproc-per-node=2", "train.py", "--deepspeed", "zero3.json"];

    #[test]
    fn a_fraction_where_a_whole_number_must_stand_is_named_with_its_key_and_line() {
        let json = "{\n  \"train_micro_batch_size_per_gpu\": \"auto\",\n  \"zero_optimization\": {\n    \"stage\": 3,\n    \
                    \"reduce_bucket_size\": 5e8,\n    \"stage3_prefetch_bucket_size\": 15099494.4\n  },\n  \
                    \"gradient_accumulation_steps\": 4.0,\n  \"steps_per_print\": 1e9\n}\n";
        assert_eq!(
            said(&TORCHRUN, json),
            [
                "zero3.json:8: `gradient_accumulation_steps` is 4.0, and DeepSpeed takes whole numbers only there; write 4",
                "zero3.json:6: `zero_optimization.stage3_prefetch_bucket_size` is 15099494.4, and DeepSpeed takes whole \
                 numbers only there; write 15099494",
            ]
        );
        assert_eq!(said(&TORCHRUN, &json.replace("15099494.4", "15099494").replace("4.0", "4")), [""; 0]);
    }

    #[test]
    fn the_batch_sizes_multiply_to_the_total() {
        let json = |total: u64, more: &str| {
            format!("{{\n\"train_batch_size\": {total},\n\"train_micro_batch_size_per_gpu\": 4{more}\n}}")
        };
        let four = ",\n\"gradient_accumulation_steps\": 4";
        assert_eq!(said(&TORCHRUN, &json(32, four)), [""; 0]);
        assert_eq!(
            said(&TORCHRUN, &json(48, four)),
            [
                "zero3.json:2: `train_batch_size` is 48, but 4 × 4 × 2 (micro-batch, accumulation, ranks) are 32; write 32, \
              or \"auto\" with the Trainer of transformers"
            ]
        );
        let own = ["deepspeed", "--num_gpus", "4", "train.py", "--deepspeed_config=zero3.json"];
        assert!(said(&own, &json(96, four))[0].contains("4 × 4 × 4"));
        for (total, what) in [(64, "data-parallel"), (32, "two ranks share a model"), (16, "four share one")] {
            assert_eq!(said(&own, &json(total, four)), [""; 0], "{what}");
        }
        // The ranks are not known: the total has to be a multiple.
        let python = ["python", "train.py", "--deepspeed", "zero3.json"];
        assert_eq!(said(&python, &json(48, four)), [""; 0]);
        assert!(said(&python, &json(40, four))[0].contains("are 16, which does not divide it"));
        assert_eq!(said(&TORCHRUN, &json(16, "")), [""; 0], "DeepSpeed derives the accumulation");
        assert_eq!(said(&TORCHRUN, &json(16, ",\n\"gradient_accumulation_steps\": \"auto\"")), [""; 0]);
    }

    #[test]
    fn everything_that_deepspeed_reads_is_taken() {
        for value in ["1e9", "10.5", "Infinity", "null", "\"10\""] {
            let json = format!("{{ \"steps_per_print\": {value}, \"train_micro_batch_size_per_gpu\": \"4\" }}");
            assert_eq!(said(&TORCHRUN, &json), [""; 0], "{value}");
        }
        let commented = "{\n  # of one GPU\n  \"train_micro_batch_size_per_gpu\": 4.5,\n}\n";
        let wrong = said(&TORCHRUN, commented);
        assert!(wrong.len() == 1 && wrong[0].starts_with("zero3.json:3: `train_micro"), "{wrong:?}");
        assert_eq!(said(&TORCHRUN, &commented.replace("4.5", "4")), [""; 0]);
    }

    #[test]
    fn a_broken_file_is_named_and_a_switch_names_none() {
        assert_eq!(said(&["deepspeed", "train.py", "--deepspeed"], "{"), [""; 0]);
        let broken = said(&TORCHRUN, "{ \"a\": [ }");
        assert!(broken[0].starts_with("zero3.json:1:"), "{broken:?}");
        assert_eq!(said(&["python", "train.py", "--deepspeed", "other.json"], "{}"), [""; 0]);
    }
}
