//! The documented command of each trainer.

use super::helper::Place;
use downshift::config::command::files::FileContent;
use downshift::config::command::first_launch;
use downshift::config::run::{AsWritten, Run, Source};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A command with the files that it needs.
pub struct Case {
    /// The profile that it has.
    pub profile: &'static str,
    /// The command.
    pub line: &'static str,
    /// The files: name and content.
    pub files: &'static [(&'static str, &'static str)],
    /// The rungs of its ladder.
    pub rungs: &'static [&'static str],
    /// A line of the run file.
    pub holds: &'static str,
}

/// A script of kohya's: another module declares its arguments.
const KOHYA: &str = "from library import train_util\nimport train_network\n\nclass Trainer(train_network.NetworkTrainer):\n    pass\n\n\
                     def setup_parser():\n    parser = train_network.setup_parser()\n    return parser\n\n\
                     parser = setup_parser()\nargs = parser.parse_args()\ntrain_util.verify(args)\nTrainer().train(args)\n";

pub const CASES: &[Case] = &[
    Case {
        profile: "kohya sd-scripts, networks",
        line: "accelerate launch --num_cpu_threads_per_process 1 sdxl_train_network.py --dataset_config=my.toml \
               --output_dir=out --save_state --mixed_precision bf16 --train_batch_size 8 --sdpa",
        files: &[
            ("sdxl_train_network.py", KOHYA),
            (
                "my.toml",
                "# mine\n[general]\nenable_bucket = true\n\n[[datasets]]\nresolution = 1024\nbatch_size = 4 # fits\n",
            ),
        ],
        rungs: &["segments", "accumulate", "checkpointing", "fp8-base", "f32", "lower-rate"],
        holds: "    set:\n      \"datasets[0].batch_size\": \"{training.micro_batch}\"\n",
    },
    Case {
        profile: "kohya sd-scripts, networks",
        line: "accelerate launch flux_train_network.py --config_file x.toml",
        files: &[
            ("flux_train_network.py", KOHYA),
            (
                "x.toml",
                "output_dir = \"out\"\nsave_state = true\ndataset_config = \"data.toml\"\nmixed_precision = \"bf16\"\n\
                        learning_rate = 5e-5\nfp8_base = true\n",
            ),
            ("data.toml", "[[datasets]]\nbatch_size = 4\n"),
        ],
        rungs: &["segments", "checkpointing", "swap-blocks", "lower-rate"],
        holds: "checkpoints: { match: \"out/*-state\", complete: random_states_0.pkl }\n",
    },
    Case {
        profile: "kohya sd-scripts",
        line: "accelerate launch sdxl_train_textual_inversion.py --output_dir=out --train_batch_size=4",
        files: &[("sdxl_train_textual_inversion.py", KOHYA)],
        rungs: &["segments", "accumulate", "checkpointing", "lower-rate"],
        holds: "  \"--gradient_accumulation_steps={training.accumulation}\": 1\n",
    },
    Case {
        profile: "LLaMA-Factory",
        line: "llamafactory-cli train x.yaml learning_rate=1.0e-5",
        files: &[(
            "x.yaml",
            "### model\nmodel_name_or_path: m\nflash_attn: fa2\noutput_dir: saves/x\nper_device_train_batch_size: 2\n\
             learning_rate: 1.0e-4\nfp16: true\n",
        )],
        rungs: &["segments", "accumulate", "sdpa", "bf16", "f32", "lower-rate"],
        holds: "resume: { arguments: [\"resume_from_checkpoint={checkpoint}\"] }\n",
    },
    Case {
        profile: "axolotl",
        line: "axolotl train lora.yml",
        files: &[(
            "lora.yml",
            "base_model: m\noutput_dir: ./outputs\ngradient_accumulation_steps: 2\nmicro_batch_size: 2\nbatch_size:\n\
             learning_rate: 0.0002\nbf16: auto\nattn_implementation: flash_attention_2\ngradient_checkpointing: false\n",
        )],
        rungs: &["segments", "accumulate", "checkpointing", "lower-rate"],
        holds: "resume: { arguments: [\"--resume-from-checkpoint={checkpoint}\"] }\n",
    },
    Case {
        profile: "axolotl",
        line: "accelerate launch -m axolotl.cli.train lora.yml",
        files: &[("lora.yml", "micro_batch_size: 2\noutput_dir: o\n")],
        rungs: &["segments", "accumulate"],
        holds: "  \"--gradient-accumulation-steps={training.accumulation}\": 1\n",
    },
    Case {
        profile: "Ultralytics YOLO",
        line: "yolo detect train data=coco8.yaml model=yolo26n.pt epochs=100 imgsz=640 batch=16",
        files: &[],
        rungs: &["segments", "half-batch", "small-pictures"],
        holds: "  - \"batch={knobs.batch}\"\n",
    },
    Case {
        profile: "Ultralytics YOLO",
        line: "yolo train data=coco8.yaml model=yolo26n.pt project=/runs name=a",
        files: &[],
        rungs: &["segments", "half-batch", "small-pictures"],
        holds: "checkpoints: { match: \"/runs/a*/weights/last.pt\", copy: true, keep_last: 2 }\n",
    },
];

/// Reports whether two words are equal, or name the same number: `lr=1e-5` and `lr=0.00001`.
fn is_same(word: &str, wanted: &str) -> bool {
    let number = |word: &str| {
        Some(word.rsplit_once('=').unwrap_or(("", word))).map(|(name, it)| (name.to_owned(), it.parse::<f64>()))
    };
    let (Some((name, Ok(number))), Some((wanted_name, Ok(wanted_number)))) = (number(word), number(wanted)) else {
        return word == wanted;
    };
    name == wanted_name && number.total_cmp(&wanted_number).is_eq()
}

/// Writes the files of a case, and returns the lines that `init` prints with the run file that it writes.
pub fn propose(place: &Place, case: &Case, options: &[&str]) -> (String, String) {
    for (name, content) in case.files {
        let path = place.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let words = ["init", "--output", "run.yaml"].iter().chain(options).copied().chain(["--"]);
    let said = place.succeed(&words.chain(case.line.split_whitespace()).collect::<Vec<_>>());
    (said, fs::read_to_string(place.dir.path().join("run.yaml")).unwrap())
}

#[test]
fn each_documented_command_is_recognised_and_gets_its_ladder() {
    let mut wrong = Vec::new();
    for case in CASES {
        let place = Place::real();
        let (said, file) = propose(&place, case, &[]);
        let ladder = format!("ladder: full, {}\n", case.rungs.join(", "));
        let profile = format!("\nprofile {}: ", case.profile);
        if !said.contains(&profile) || !said.contains(&ladder) || !file.contains(case.holds) {
            wrong.push(format!("$ {}\nwithout {:?} in\n{said}\n{file}", case.line, [&profile, &ladder, case.holds]));
        }
        let checked = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
        assert!(checked.contains(&profile), "{}: {checked}", case.line);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn rung_full_starts_the_command_as_it_was_typed() {
    for case in CASES {
        let place = Place::real();
        let (_, file) = propose(&place, case, &[]);
        let source = Source { file: "run.yaml", text: &file, base: place.dir.path(), overrides: &[] };
        let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{}: {refusal}", case.line));
        let mut copies: BTreeMap<String, String> = BTreeMap::new();
        let launch = first_launch(&run, 0, 1).unwrap();
        for copy in &launch.files {
            let FileContent::Copy { from, .. } = &copy.content else { panic!("{}: a text", case.line) };
            let original = copy.content.read().unwrap().unwrap();
            assert_eq!(original.patched.text, original.text, "{}: the copy has other bytes", case.line);
            let name = from.strip_prefix(place.dir.path()).unwrap().display().to_string();
            copies.insert(copy.path.display().to_string(), name);
        }
        let typed = |word: &String| copies.iter().fold(word.clone(), |word, (copy, name)| word.replace(copy, name));
        let words: Vec<String> = launch.argv.iter().map(typed).collect();
        let wanted: Vec<&str> = case.line.split_whitespace().collect();
        let are_same =
            words.len() == wanted.len() && words.iter().zip(&wanted).all(|(word, wanted)| is_same(word, wanted));
        assert!(are_same, "{words:?} instead of {wanted:?}\n{file}");
        assert_eq!(launch.directory.canonicalize().unwrap(), Path::canonicalize(place.dir.path()).unwrap());
        assert!(launch.environment.is_empty(), "{}: {:?}", case.line, launch.environment);
        for rung in 1..run.rungs.len() {
            let other = first_launch(&run, rung, 1).unwrap();
            assert_ne!(other, launch, "{}: rung {} changes nothing", case.line, run.rungs[rung].name);
        }
    }
}
