//! The files that a script writes by itself, by its source: which a second start from the beginning may replace.

use super::program::Program;
use super::python::{Call, Expr, Literal, MOVERS};
use super::saves::{Part, final_name, saved_files};

/// Names of functions and modules that write files, besides `open` and those that begin with `save`.
const WRITERS: [&str; 38] = [
    "write",
    "writelines",
    "write_text",
    "write_bytes",
    "writerow",
    "writerows",
    "dump",
    "to_csv",
    "to_json",
    "to_parquet",
    "to_pickle",
    "to_excel",
    "to_feather",
    "to_hdf",
    "to_sql",
    "tofile",
    "imwrite",
    "imsave",
    "write_video",
    "export",
    "SummaryWriter",
    "FileHandler",
    "basicConfig",
    "wandb",
    "mlflow",
    "makedirs",
    "mkdir",
    "rename",
    "renames",
    "rmtree",
    "unlink",
    "copyfile",
    "copytree",
    "copy2",
    "memmap",
    "system",
    "subprocess",
    "Popen",
];
/// Functions whose first argument names the file, or an object that is saved into a file named by the second.
const SAVERS: [&str; 2] = ["save", "save_file"];

/// The files that a script writes by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writes {
    /// Paths that are written out in the source.
    pub files: Vec<String>,
    /// Names that write files whose paths are not known.
    pub others: Vec<String>,
}

impl Writes {
    /// Finds them. A module that was not understood may write anything.
    #[must_use]
    pub fn find(program: &Program) -> Self {
        let mut writes = Self::default();
        for file in saved_files(program) {
            match &file.path[..] {
                [Part::Text(path)] => writes.files.push(final_name(path).to_owned()),
                _ => writes.add_other("torch.save"),
            }
        }
        for (_, call) in program.all_calls() {
            let known = SAVERS.contains(&call.function.as_str())
                && ["torch", "", "safetensors.torch"].contains(&call.receiver.as_str());
            let opens = call.function == "open" && opens_to_write(call);
            if call.function.starts_with("save") && !known || opens || moves(call) {
                writes.add_other(&call.function);
            }
        }
        // A call on what another call returns, such as `Path(…).open("w")`, is not read.
        let is_read = |name: &str| program.calls(name).next().is_some();
        let unread = ["open", "save", "save_pretrained", "savefig"].into_iter().filter(|name| program.mentions(name));
        unread.filter(|name| !is_read(name)).for_each(|name| writes.add_other(name));
        WRITERS.iter().filter(|name| program.mentions(name)).for_each(|name| writes.add_other(name));
        if let Some(skipped) = program.skipped.first() {
            writes.add_other(&skipped.path.display().to_string());
        }
        writes
    }

    fn add_other(&mut self, name: &str) {
        if !self.others.iter().any(|known| known == name) {
            self.others.push(name.to_owned());
        }
    }
}

/// Reports whether a call moves, copies or removes a file. `Path.replace` takes one argument, that of a text two.
fn moves(call: &Call) -> bool {
    let is_of_files = ["", "os", "shutil"].contains(&call.receiver.as_str());
    let is_of_path = call.function == "replace" && call.positional.len() == 1;
    MOVERS.contains(&call.function.as_str()) && (is_of_files || is_of_path)
}

/// Reports whether a call of `open` may write. `Path.open` has its mode first, the function second.
fn opens_to_write(call: &Call) -> bool {
    let place = usize::from(call.receiver.is_empty() || call.positional.len() > 1);
    let mode = call.keyword("mode").or_else(|| call.positional.get(place));
    match mode {
        None => false,
        Some(Expr::Literal(Literal::Text(mode))) => mode.contains(['w', 'a', 'x', '+']),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::Writes;
    use crate::init::program::Program;

    #[test]
    fn the_files_of_a_script_are_named_and_reading_is_not_writing() {
        let cases: [(&str, &[&str], &[&str]); 14] = [
            ("run = downshift.attach(model)\nprint(run.step(loss))\n", &[], &[]),
            ("torch.save(model.state_dict(), 'model.pt')\n", &["model.pt"], &[]),
            ("PATH = 'model.pt'\ntorch.save(model, PATH)\n", &["model.pt"], &[]),
            ("torch.save(model, f'{options.out}/model.pt')\n", &[], &["torch.save"]),
            ("text = open('data.txt').read()\nmore = open('data.bin', 'rb').read()\n", &[], &[]),
            ("with open('log.txt', 'a') as log:\n    pass\n", &[], &["open"]),
            ("with Path('log.txt').open('w') as log:\n    pass\n", &[], &["open"]),
            ("model.save_pretrained('out')\n", &[], &["save_pretrained"]),
            ("plt.savefig('loss.png')\nnp.save('x', y)\n", &[], &["savefig", "save"]),
            ("frame.to_csv('losses.csv')\n", &[], &["to_csv"]),
            (
                "torch.save(model, 'model.pt.tmp')\nos.replace('model.pt.tmp', 'model.pt')\n",
                &["model.pt"],
                &["replace"],
            ),
            ("best.replace(final)\nshutil.move(a, b)\nx.tofile(f)\n", &[], &["replace", "move", "tofile"]),
            ("torch.onnx.export(model, x, 'm.onnx')\ncv2.imwrite('a.png', y)\n", &[], &["imwrite", "export"]),
            ("name = name.replace('a', 'b')\nqueue.remove(x)\nbest = model.copy()\n", &[], &[]),
        ];
        for (text, files, others) in cases {
            let Writes { files: found, others: more } = Writes::find(&Program::of(text));
            assert_eq!((&found[..], &more[..]), (&files.map_owned()[..], &others.map_owned()[..]), "{text}");
        }
    }

    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for &[&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|name| (*name).to_owned()).collect()
        }
    }
}
