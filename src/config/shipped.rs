//! Run files that ship inside the program.

use std::path::Path;

const RUN_FILES: [(&str, &str, &str); 8] = [
    ("digits", "configs/digits.yaml", include_str!("../../configs/digits.yaml")),
    ("text", "configs/text.yaml", include_str!("../../configs/text.yaml")),
    ("lora", "configs/lora.yaml", include_str!("../../configs/lora.yaml")),
    ("finetune", "configs/finetune.yaml", include_str!("../../configs/finetune.yaml")),
    ("stable", "configs/stable.yaml", include_str!("../../configs/stable.yaml")),
    ("sizes", "configs/sizes.yaml", include_str!("../../configs/sizes.yaml")),
    ("cifar10", "configs/cifar10.yaml", include_str!("../../configs/cifar10.yaml")),
    ("command", "configs/command.yaml", include_str!("../../configs/command.yaml")),
];

/// Returns the names of the shipped run files.
#[must_use]
pub fn names() -> Vec<&'static str> {
    RUN_FILES.iter().map(|(name, ..)| *name).collect()
}

/// Finds a shipped file by name, with or without folder and extension, and returns its display name and text.
#[must_use]
pub fn run_file(path: &Path) -> Option<(&'static str, &'static str)> {
    let wanted = path.file_stem()?.to_str()?;
    let whole = path.components().count() == 1 || path.starts_with("configs");
    RUN_FILES.iter().find(|(name, ..)| whole && *name == wanted).map(|(_, file, text)| (*file, *text))
}
