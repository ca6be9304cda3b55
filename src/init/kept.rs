//! Whether the companion keeps a script, by its source: it hooks into the trainers of frameworks with no line changed.

use super::attached::is_attached;
use super::program::Program;
use crate::config::command::invocation::Invocation;
use std::fmt;

/// The code that the companion keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// A loop that calls `downshift.attach`.
    Loop,
    /// The Trainer of Hugging Face, or one of TRL above it.
    HuggingFace,
    /// The Trainer of Lightning.
    Lightning,
    /// A loop around an Accelerator.
    Accelerate,
}

impl Kept {
    /// Finds it; none in a script that the companion only watches, or that a launcher starts in several processes.
    #[must_use]
    pub fn find(program: &Program, invocation: &Invocation) -> Option<Self> {
        if invocation.isolated {
            None
        } else if is_attached(program) {
            Some(Self::Loop)
        } else if invocation.launcher.is_some() {
            None
        } else {
            Self::find_framework(program)
        }
    }

    fn find_framework(program: &Program) -> Option<Self> {
        let imports = |packages: &[&str]| program.imports().any(|import| packages.contains(&import.root()));
        let trainer_of = |packages: &[&str]| {
            let mut of = program.imports().filter(|import| packages.contains(&import.root()));
            of.any(|import| import.names.iter().any(|name| name.ends_with("Trainer") && program.mentions(name)))
        };
        let has_trainer = |packages: &[&str]| trainer_of(packages) || imports(packages) && program.mentions("Trainer");
        if has_trainer(&["transformers", "trl"]) && program.mentions("train") {
            return Some(Self::HuggingFace);
        }
        let lightning = ["lightning", "pytorch_lightning"];
        let fits = program.mentions("fit") && has_trainer(&lightning) || program.mentions("LightningCLI");
        if imports(&lightning) && fits {
            return Some(Self::Lightning);
        }
        let loops = ["Accelerator", "prepare", "backward"].iter().all(|name| program.mentions(name));
        (imports(&["accelerate"]) && loops).then_some(Self::Accelerate)
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Loop => "downshift.attach",
            Self::HuggingFace => "Hugging Face's Trainer",
            Self::Lightning => "Lightning's Trainer",
            Self::Accelerate => "a loop around accelerate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;
    use crate::config::command::invocation::find_script;
    use crate::init::program::Program;

    fn find(line: &str, text: &str) -> Option<Kept> {
        let command: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Kept::find(&Program::of(text), &find_script(&command).unwrap())
    }

    #[test]
    fn the_trainers_that_the_companion_hooks_are_kept_with_no_line_changed() {
        let scripts = [
            ("from transformers import Trainer\nTrainer(model).train()\n", Some(Kept::HuggingFace)),
            ("import transformers\ntransformers.Trainer(model).train()\n", Some(Kept::HuggingFace)),
            ("from trl import SFTTrainer\nSFTTrainer(model).train()\n", Some(Kept::HuggingFace)),
            (
                "from transformers import Trainer\nclass Mine(Trainer):\n    pass\nMine(model).train()\n",
                Some(Kept::HuggingFace),
            ),
            ("import lightning as L\nL.Trainer(max_epochs=3).fit(model)\n", Some(Kept::Lightning)),
            ("from pytorch_lightning import Trainer\nTrainer().fit(model)\n", Some(Kept::Lightning)),
            ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)\n", Some(Kept::Lightning)),
            (
                "from accelerate import Accelerator\na = Accelerator()\nm = a.prepare(m)\na.backward(loss)\n",
                Some(Kept::Accelerate),
            ),
            ("from accelerate import Accelerator\na = Accelerator()\nm = a.prepare(m)\nevaluate(m)\n", None),
            ("import downshift\nrun = downshift.attach(model)\n", Some(Kept::Loop)),
            ("from transformers import AutoModel\nmodel = AutoModel()\nmodel.train()\n", None),
            ("from transformers import Trainer\nTrainer(model).evaluate()\n", None),
            ("from lightning.fabric import Fabric\nfabric = Fabric()\nmodel.fit()\n", None),
            ("import torch\nmodel.train()\n", None),
        ];
        for (text, kept) in scripts {
            assert_eq!(find("python train.py", text), kept, "{text}");
        }
    }

    #[test]
    fn a_launcher_and_a_bare_python_are_not_promised_a_companion() {
        let text = "from transformers import Trainer\nTrainer(model).train()\n";
        assert_eq!(find("torchrun --nproc_per_node 2 train.py", text), None);
        assert_eq!(find("python -I train.py", text), None);
        assert_eq!(find("python -uE train.py", text), None);
        assert_eq!(find("python -W ignore -I train.py", text), None);
        assert_eq!(find("python -u -W ignore train.py -S", text), Some(Kept::HuggingFace));
        let attached = "import downshift\ndownshift.attach(model)\n";
        assert_eq!(find("torchrun --nproc_per_node 2 train.py", attached), Some(Kept::Loop));
    }
}
