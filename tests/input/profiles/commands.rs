//! The documented command of each trainer.

use crate::helper::Place;
use downshift::config::command::files::FileContent;
use downshift::config::command::first_launch;
use downshift::config::run::{AsWritten, Run, Source};
use downshift::init::profile::Profile;
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
        rungs: &["segments", "checkpointing", "fp8-base", "f32", "clip"],
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
        rungs: &["segments", "checkpointing", "swap-blocks", "clip"],
        holds: "checkpoints: { match: \"out/*-state\", complete: random_states_0.pkl }\n",
    },
    Case {
        profile: "kohya sd-scripts",
        line: "accelerate launch sdxl_train_textual_inversion.py --output_dir=out --train_batch_size=4",
        files: &[("sdxl_train_textual_inversion.py", KOHYA)],
        rungs: &["segments", "accumulate", "checkpointing", "clip"],
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
    Case {
        profile: "musubi-tuner",
        line: "accelerate launch --mixed_precision bf16 src/musubi_tuner/zimage_train_network.py --dit d --dataset_config t.toml \
               --output_dir out --save_state --sdpa",
        files: &[
            ("src/musubi_tuner/zimage_train_network.py", "from musubi_tuner.hv_train_network import main\nmain()\n"),
            ("t.toml", "[general]\nbatch_size = 2\n\n[[datasets]]\nimage_directory = \"i\"\n"),
        ],
        rungs: &["segments", "accumulate", "checkpointing", "swap-blocks", "clip"],
        holds: "checkpoints: { match: \"out/*-state\", complete: random_states_0.pkl }\n",
    },
    Case {
        profile: "ai-toolkit",
        line: "python run.py config/my.yml",
        files: &[
            (
                "run.py",
                "import argparse\nfrom toolkit.job import get_job\np = argparse.ArgumentParser()\n\
                        p.add_argument('config_file_list', nargs='+')\nget_job(p.parse_args()).run()\n",
            ),
            (
                "config/my.yml",
                "job: extension\nconfig:\n  name: first # mine\n  process:\n    - type: sd_trainer\n      training_folder: output\n      \
                 save:\n        dtype: float16\n      train:\n        batch_size: 4\n        steps: 2000\n        \
                 gradient_accumulation: 1\n        gradient_checkpointing: false\n        lr: 1e-4\n        dtype: bf16\n      \
                 model:\n        quantize: false\n      sample:\n        sample_steps: 20\n        seed: 42\n",
            ),
        ],
        rungs: &["segments", "accumulate", "checkpointing", "quantize", "lower-rate"],
        holds: "checkpoints: { match: \"output/first/first_*.safetensors\" }\nresume: { arguments: [] }\n",
    },
    Case {
        profile: "diffusion-pipe",
        line: "deepspeed --num_gpus=1 train.py --deepspeed --config x.toml",
        files: &[
            (
                "train.py",
                "import argparse\nimport deepspeed\nfrom utils.pipeline import ManualPipelineModule\n\
                          p = argparse.ArgumentParser()\np.add_argument('--config')\n\
                          p.add_argument('--resume_from_checkpoint', nargs='?', const=True)\n\
                          p = deepspeed.add_config_arguments(p)\nManualPipelineModule(p.parse_args())\n",
            ),
            (
                "x.toml",
                "output_dir = '/data/runs'\nmicro_batch_size_per_gpu = 4 # fits\neval_micro_batch_size_per_gpu = 1\n\
                        gradient_accumulation_steps = 1\ngradient_clipping = 1.0\nactivation_checkpointing = false\n\n[optimizer]\n\
                        type = 'AdamW8bitKahan'\nlr = 2e-5\n",
            ),
        ],
        rungs: &["segments", "accumulate", "checkpointing"],
        holds: "resume: { arguments: [\"--resume_from_checkpoint={checkpoint.parent}\"] }\n# Before a shift, a pause or a stop.\n\
                save: { touch: \"/data/runs/*/save\", within: 600 s }\n",
    },
    Case {
        profile: "OneTrainer",
        line: "python scripts/train.py --config-path c.json",
        files: &[
            ("scripts/train.py", "from modules.util.args.TrainArgs import TrainArgs\nTrainArgs.parse_args()\n"),
            (
                "c.json",
                "{\n    \"batch_size\": 2,\n    \"gradient_accumulation_steps\": 1,\n    \"learning_rate\": 1e-5,\n    \
                        \"unet\": {\"learning_rate\": null},\n    \"train_dtype\": \"FLOAT_16\"\n}\n",
            ),
        ],
        rungs: &["segments", "accumulate", "bf16", "lower-rate"],
        holds: "      \"train_dtype\": \"{knobs.train_dtype}\"\n",
    },
    Case {
        profile: "TRL",
        line: "trl sft --config sft.yaml --output_dir out",
        files: &[(
            "sft.yaml",
            "model_name_or_path: m\nlearning_rate: 7.0e-6\nper_device_train_batch_size: 2\n\
                               gradient_accumulation_steps: 16\nbf16: true\n",
        )],
        rungs: &["segments", "accumulate", "f32", "lower-rate"],
        holds: "checkpoints: { match: \"out/checkpoint-*\", complete: trainer_state.json }\n",
    },
    Case {
        profile: "timm",
        line: "python train.py --data-dir D --model resnet50 -b 256 --lr 0.1 --amp --output out --experiment a",
        files: &[(
            "train.py",
            "import argparse\nfrom timm import utils\np = argparse.ArgumentParser()\np.add_argument('--data-dir')\n\
             p.add_argument('--model')\np.add_argument('-b', '--batch-size', type=int, default=128)\n\
             p.add_argument('--lr', type=float)\np.add_argument('--amp', action='store_true', default=False)\n\
             p.add_argument('--amp-dtype', default='float16', type=str)\np.add_argument('--resume', default='', type=str)\n\
             p.add_argument('--grad-accum-steps', type=int, default=1)\np.add_argument('--output', default='', type=str)\n\
             p.add_argument('--experiment', default='', type=str)\nutils.CheckpointSaver(p.parse_args())\n",
        )],
        rungs: &["segments", "accumulate", "bf16", "f32", "safe"],
        holds: "checkpoints: { match: \"out/a/last.pth.tar\", copy: true, keep_last: 2 }\n",
    },
    Case {
        profile: "timm",
        line: "python train.py -b 256",
        files: &[(
            "train.py",
            "import argparse\nfrom timm import utils\np = argparse.ArgumentParser()\n\
             p.add_argument('-b', '--batch-size', type=int, default=128)\np.add_argument('--amp', action='store_true')\n\
             p.add_argument('--amp-dtype', default='float16', type=str)\np.add_argument('--output', default='')\n\
             p.add_argument('--experiment', default='')\nutils.CheckpointSaver(p.parse_args())\n",
        )],
        rungs: &["segments"],
        holds: "checkpoints: { match: \"output/train/*/last.pth.tar\", copy: true, keep_last: 2 }\n",
    },
    Case {
        profile: "LightningCLI",
        line: "python main.py fit --config c.yaml",
        files: &[
            ("main.py", "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n"),
            ("c.yaml", "trainer:\n  precision: 16-mixed\ndata:\n  batch_size: 8\nmodel:\n  lr: 0.01\n"),
        ],
        rungs: &["segments", "accumulate", "bf16", "f32", "lower-rate", "safe"],
        holds: "  \"--trainer.accumulate_grad_batches={training.accumulation}\": 1\n",
    },
    Case {
        profile: "torchtune",
        line: "tune run lora_finetune_single_device --config mine.yaml batch_size=4",
        files: &[(
            "mine.yaml",
            "batch_size: 2\ngradient_accumulation_steps: 8\noptimizer:\n  lr: 3e-4\ndtype: bf16\n\
                                enable_activation_checkpointing: false\n",
        )],
        rungs: &["segments", "accumulate", "checkpointing", "f32", "lower-rate"],
        holds: "  - \"batch_size={training.micro_batch}\"\n",
    },
    Case {
        profile: "nanoGPT",
        line: "python train.py config/train_shakespeare_char.py --batch_size=64",
        files: &[
            ("config/train_shakespeare_char.py", "learning_rate = 1e-3\n"),
            (
                "train.py",
                "out_dir = 'out'\nalways_save_checkpoint = True\ninit_from = 'scratch'\nbatch_size = 12\n\
                          gradient_accumulation_steps = 40\nlearning_rate = 6e-4\n\
                          exec(open('configurator.py').read())\nif always_save_checkpoint: print(init_from)\n",
            ),
        ],
        rungs: &["segments", "accumulate", "lower-rate", "safe"],
        holds: "  \"--learning_rate={optimizer.lr}\": 0.001\n",
    },
    Case {
        profile: "Hugging Face Trainer",
        line: "torchrun --nproc_per_node 2 run_clm.py --output_dir out --per_device_train_batch_size 4",
        files: &[(
            "run_clm.py",
            "from transformers import HfArgumentParser, Trainer, TrainingArguments\n\
                                 args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\nTrainer(args).train()\n",
        )],
        rungs: &["segments", "accumulate", "checkpointing", "lower-rate"],
        holds: "checkpoints: { match: \"out/checkpoint-*\", complete: trainer_state.json }\n",
    },
    Case {
        profile: "diffusers example",
        line: "accelerate launch train_dreambooth.py --output_dir=out --train_batch_size=4",
        files: &[(
            "train_dreambooth.py",
            "import argparse\nfrom accelerate import Accelerator\np = argparse.ArgumentParser()\n\
                                          p.add_argument('--output_dir')\np.add_argument('--train_batch_size', type=int)\n\
                                          p.add_argument('--gradient_accumulation_steps', type=int, default=1)\n\
                                          p.add_argument('--checkpoints_total_limit', type=int)\n\
                                          p.add_argument('--resume_from_checkpoint', type=str)\n\
                                          args = p.parse_args()\nAccelerator().save_state(args.output_dir)\n",
        )],
        rungs: &["segments", "accumulate"],
        holds: "checkpoints: { match: \"out/checkpoint-*\", complete: random_states_0.pkl }\n",
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
fn an_argument_that_a_settings_file_overrides_is_named_and_stays_as_it_is() {
    let case = CASES.iter().find(|case| case.line.contains("--train_batch_size 8")).unwrap();
    let (said, file) = propose(&Place::real(), case, &[]);
    assert!(
        said.contains("note: --train_batch_size has no effect: a settings file of the command overrides it\n"),
        "{said}"
    );
    assert!(file.contains("  - --train_batch_size\n  - \"8\"\n"), "{file}");
}

#[test]
fn each_shipped_profile_has_a_command_here_and_a_row_in_the_book() {
    let book = include_str!("../../../docs/src/profiles.md");
    for profile in Profile::shipped().unwrap() {
        assert!(CASES.iter().any(|case| case.profile == profile.name), "{} has no command", profile.name);
        let name = profile.name.trim_end_matches(" example").to_owned();
        assert!(book.contains(&format!("\n| {name}")), "{name} is not in the book");
    }
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
