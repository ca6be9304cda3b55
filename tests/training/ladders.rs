//! The shipped ladders, run by the real program: every variant checked for its target device, and one run
//! that runs out of memory on every rung but the last.
#![cfg(feature = "train")]

#[cfg(test)]
mod tests {
    use crate::helper::{Place, journal_says};
    use downshift::config::knobs::Relief;
    use downshift::config::run::{AsWritten, Run, Source};
    use downshift::shipped;
    use downshift::store::reader::Reader;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Write as _;
    use std::path::Path;

    /// Returns the variants of a run file, starting with None for no variant.
    fn variants(text: &str) -> Vec<Option<String>> {
        let (tree, _) = downshift::config::yaml::parse(text).unwrap();
        let names = tree.get("variants").and_then(Value::as_object).into_iter().flat_map(|all| all.keys().cloned());
        [None].into_iter().chain(names.map(Some)).collect()
    }

    fn read(name: &str, variant: Option<&String>) -> Run {
        let (file, text) = shipped::run_file(Path::new(name)).unwrap();
        let overrides: Vec<_> = variant.map(|variant| ("variant".to_owned(), variant.clone())).into_iter().collect();
        let source = Source { file, text, base: Path::new("/base"), overrides: &overrides };
        Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Creates GPT-2 with 124M parameters where the variants look for it: a config, a tokenizer, and the
    /// header of the weights, followed by a sparse hole instead of the values.
    fn gpt2(place: &Place) {
        let folder = place.dir.path().join("models/gpt2");
        fs::create_dir_all(&folder).unwrap();
        let config = json!({ "model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024,
        "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new" });
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/gpt2");
        fs::copy(fixtures.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
        let (whole, parts) = (|name: &str, dims: &[u64]| (name.to_owned(), dims.to_vec()), 0..12);
        let block = |index: u64| {
            let part = move |name: &str, dims: &[u64]| (format!("h.{index}.{name}"), dims.to_vec());
            [
                part("ln_1.weight", &[768]),
                part("ln_1.bias", &[768]),
                part("attn.c_attn.weight", &[768, 2304]),
                part("attn.c_attn.bias", &[2304]),
                part("attn.c_proj.weight", &[768, 768]),
                part("attn.c_proj.bias", &[768]),
                part("ln_2.weight", &[768]),
                part("ln_2.bias", &[768]),
                part("mlp.c_fc.weight", &[768, 3072]),
                part("mlp.c_fc.bias", &[3072]),
                part("mlp.c_proj.weight", &[3072, 768]),
                part("mlp.c_proj.bias", &[768]),
            ]
        };
        let outer = [
            whole("wte.weight", &[50257, 768]),
            whole("wpe.weight", &[1024, 768]),
            whole("ln_f.weight", &[768]),
            whole("ln_f.bias", &[768]),
        ];
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, dims) in outer.into_iter().chain(parts.flat_map(block)) {
            let begin = end;
            end += 4 * dims.iter().product::<u64>();
            header.insert(name, json!({ "dtype": "F32", "shape": dims, "data_offsets": [begin, end] }));
        }
        let header = Value::Object(header).to_string();
        let mut file = fs::File::create(folder.join("model.safetensors")).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len(8 + header.len() as u64 + end).unwrap();
    }

    #[test]
    fn every_variant_is_checked_for_a_gpu_without_one() {
        let place = Place::real();
        gpt2(&place);
        for name in shipped::names().into_iter().filter(|name| !["cifar10", "pictures", "command"].contains(name)) {
            for variant in variants(shipped::run_file(Path::new(name)).unwrap().1) {
                let set = variant.as_ref().map(|variant| format!("variant={variant}"));
                let mut words = vec!["check", name, "--device", "cuda:9"];
                words.extend(set.iter().flat_map(|set| ["--set", set.as_str()]));
                let out = place.output(&words);
                let (shown, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
                assert_eq!(out.status.code(), Some(0), "{words:?}: {shown}{said}");
                assert!(!shown.contains("can run on") && shown.contains(" is valid, "), "{shown}");
                assert!(shown.contains("cuda:9 is not available, so it was not checked"), "{shown}");
                if variant.as_deref() == Some("gpt2") {
                    assert!(shown.contains("training.precision") && shown.contains("bf16"), "{shown}");
                    let refused = place.output(&["check", name, "--device", "cpu", "--set", "variant=gpt2"]);
                    assert_eq!(refused.status.code(), Some(13));
                    let said = String::from_utf8(refused.stderr).unwrap();
                    assert!(said.contains("bf16 does not train on the CPU") && said.contains("use f32"), "{said}");
                }
            }
        }
        let run = place.output(&["run", "digits", "--device", "cuda:9"]);
        assert_eq!(run.status.code(), Some(13), "what is only checked is not run");
    }

    /// Returns where each knob's value lies between careful and careless; larger needs more memory.
    fn appetite(run: &Run, rung: usize) -> BTreeMap<&'static str, f64> {
        let preset = &run.rungs[rung].preset;
        let model = |path: &str| preset.model.get(path).and_then(Value::as_f64).unwrap_or(0.0);
        let rank = preset.model.get("lora").and_then(|lora| lora.get("rank")?.as_f64()).unwrap_or(0.0);
        BTreeMap::from([
            ("micro_batch", preset.training.micro_batch as f64),
            ("sequence", model("sequence")),
            ("channels", model("channels")),
            ("rank", rank),
            ("activations kept", f64::from(u8::from(!preset.training.gradient_checkpointing))),
        ])
    }

    #[test]
    fn a_rung_that_relieves_asks_for_no_more_of_anything_than_every_rung_above_it() {
        for name in shipped::names() {
            for variant in variants(shipped::run_file(Path::new(name)).unwrap().1) {
                let run = read(name, variant.as_ref());
                for rung in 1..run.rungs.len() {
                    let relieves = |relief| run.rungs[rung].relieves.contains(&relief);
                    let at = format!("{name} {variant:?}, rung {}", run.rungs[rung].name);
                    for above in 0..rung {
                        let (mine, theirs) = (appetite(&run, rung), appetite(&run, above));
                        let more: Vec<&str> = mine.keys().filter(|knob| mine[*knob] > theirs[*knob]).copied().collect();
                        let also = run.rungs[above].relieves.contains(&Relief::Memory) || above == 0;
                        assert!(!relieves(Relief::Memory) || !also || more.is_empty(), "{at} asks for more {more:?}");
                        let (mine, theirs) = (&run.rungs[rung].preset, &run.rungs[above].preset);
                        let calmer = mine.optimizer.lr <= theirs.optimizer.lr || run.rungs[above].name == "b";
                        assert!(!relieves(Relief::Numerics) || calmer, "{at} has a higher rate");
                    }
                    let training = &run.rungs[rung].preset.training;
                    assert!(training.micro_batch > 0 && training.accumulation > 0, "{at}: an empty batch");
                }
            }
        }
    }

    #[test]
    fn the_figures_of_the_guides_match_their_variants() {
        let large = read("sizes", Some(&"large".to_owned()));
        let full = &large.rungs[0].preset;
        assert_eq!((full.training.epochs, full.training.micro_batch), (Some(150), 48));
        assert_eq!((&full.model["channels"], &full.model["layers"]), (&json!(28), &json!(16)));
        let conservative = read("sizes", Some(&"conservative".to_owned()));
        assert!(conservative.rungs.iter().all(|rung| rung.preset.training.gradient_checkpointing));
        let finetune = read("finetune", Some(&"gpt2".to_owned()));
        let rates: Vec<f64> = finetune.rungs.iter().map(|rung| rung.preset.optimizer.lr).collect();
        assert_eq!(rates, [5e-5, 2e-5, 5e-5, 2.5e-5, 1e-4]);
        let norms: Vec<_> = finetune.rungs.iter().map(|rung| &rung.preset.optimizer.groups.0).collect();
        let norms: Vec<_> = norms.iter().map(|groups| [groups[0].1.max_norm, groups[1].1.max_norm]).collect();
        assert_eq!(norms[..3], [[Some(1.0), Some(0.5)], [Some(0.5), Some(0.3)], [Some(0.5), Some(0.5)]]);
        let batches: Vec<_> = finetune
            .rungs
            .iter()
            .map(|rung| (rung.preset.training.micro_batch, rung.preset.training.accumulation))
            .collect();
        assert_eq!(batches, [(4, 1), (1, 4), (1, 2), (1, 1), (1, 1)]);
        let stable = read("stable", Some(&"gpt2".to_owned()));
        let epochs: Vec<_> = stable.rungs.iter().map(|rung| rung.preset.training.epochs).collect();
        assert_eq!(epochs, [Some(20), Some(12), Some(12)]);
        let passes: Vec<_> = stable.rungs.iter().map(|rung| rung.preset.training.accumulation).collect();
        assert_eq!(passes, [8, 4, 2]);
    }

    #[test]
    fn a_variant_and_a_rung_are_chosen_by_name_and_named_when_wrong() {
        let place = Place::real();
        for (words, code, part) in [
            (
                &["check", "sizes", "--set", "variant=lrge"][..],
                13,
                "--set variant=lrge: variant: this file has no variant `lrge`; did you mean `large`?",
            ),
            (&["check", "digits", "--set", "variant=large"], 13, "this file has no variant `large`"),
            (
                &["check", "sizes", "--set", "ladder.save.training.epochs=1"],
                13,
                "NAME one of accumulate, plain, safe, frugal",
            ),
            (&["run", "sizes", "--device", "cpu", "--rung", "save"], 2, "unknown rung; did you mean `safe`?"),
        ] {
            let out = place.output(words);
            let said = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
            assert!(said.contains(part), "{words:?}: {said}");
        }
        let begun = ["run", "sizes", "--headless", "--device", "cpu", "--rung", "safe", "--set", "training.epochs=1"];
        let out = place.output(&begun);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let status = place.status_json();
        assert_eq!((&status["rung_name"], &status["attempts"]), (&json!("safe"), &json!(1)));
    }

    #[test]
    fn sizes_begins_in_safe_mode() {
        let place = Place::real();
        let out = place.output(&["run", "sizes", "--headless", "--device", "cpu", "--set", "training.epochs=1"]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&out.stderr));
        let attempts = Reader::open(&place.newest().unwrap()).unwrap().attempts().unwrap();
        let first = (attempts[0].rung_name.as_str(), attempts[0].from_step);
        assert_eq!(first, ("safe", None), "{attempts:?}");
        assert_eq!(place.status_json()["plan"]["stage"], 1);
    }

    #[test]
    fn out_of_memory_on_every_rung_the_keeper_goes_down_to_the_head_alone() {
        let place = Place::real();
        let text: String = include_str!("../../crates/trainer/assets/persuasion.txt").chars().take(5000).collect();
        fs::write(place.dir.path().join("short.txt"), text).unwrap();
        let out = place.output(&[
            "run",
            "finetune",
            "--headless",
            "--device",
            "cpu",
            "--set",
            "data.source=short.txt",
            "--set",
            "checkpoint.every=1 steps",
            "--inject",
            "oom@3,oom@6,oom@9,oom@12",
        ]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&out.stderr));
        let status = place.status_json();
        assert_eq!((&status["rung_name"], &status["attempts"]), (&json!("a"), &json!(5)), "{said}");
        let rows = place.rows();
        let steps = status["step"].as_u64().unwrap();
        for step in 1..=steps {
            let row = rows.iter().filter(|row| row["step"] == step).max_by_key(|row| row["attempt"].as_u64());
            assert!(row.is_some_and(|row| row["loss"].as_f64().is_some()), "a hole at step {step}");
        }
        let run = place.newest().unwrap();
        assert!(journal_says(&run, "rank 16 → 8"), "{said}");
    }
}
