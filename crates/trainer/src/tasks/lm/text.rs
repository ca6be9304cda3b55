//! Tokenization of text sources.

use crate::task::DataError;
use crate::tasks::files;
use downshift_core::untrusted::file::Limit;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The prefix of a source shipped with downshift.
pub const EMBEDDED: &str = "embedded:";
/// The text shipped with downshift; `assets/README.md` states its origin.
pub const SHIPPED: &str = "embedded:text";
/// The tokenizer that needs no file: each byte is a token.
pub const BYTES: &str = "bytes";
/// Vocabulary size of the byte tokenizer.
pub const BYTE_TOKENS: usize = 256;

static PERSUASION: &[u8] = include_bytes!("../../../assets/persuasion.txt");

/// Approximate bytes passed to the tokenizer at once; each piece ends at a line end.
const PIECE: usize = 1 << 16;

/// The translation of text to tokens and back.
#[derive(Debug)]
pub enum Codec {
    /// Each byte is a token.
    Bytes,
    /// A Hugging Face tokenizer.
    Tokenizer(Box<Tokenizer>),
}

impl Codec {
    /// Opens `bytes` or the tokenizer.json at a path.
    ///
    /// # Errors
    /// Returns an error that names the file and the remedy.
    pub fn open(name: &str) -> Result<Self, DataError> {
        if name == BYTES {
            return Ok(Self::Bytes);
        }
        Ok(Self::Tokenizer(Box::new(open_tokenizer(Path::new(name))?)))
    }

    /// Returns the size of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Bytes => BYTE_TOKENS,
            Self::Tokenizer(tokenizer) => {
                tokenizer.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1)
            }
        }
    }

    /// Appends the tokens of a file's text.
    ///
    /// # Errors
    /// Returns an error that names the file and the byte.
    fn encode(&self, file: &Path, text: &[u8], tokens: &mut Vec<u32>) -> Result<(), DataError> {
        match self {
            Self::Bytes => tokens.extend(text.iter().map(|byte| u32::from(*byte))),
            Self::Tokenizer(tokenizer) => encode_text(tokenizer, file, text, tokens)?,
        }
        Ok(())
    }

    /// Returns the tokens of the prompt in a run file.
    ///
    /// # Errors
    /// Returns an error when the tokenizer fails on it.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, DataError> {
        let mut tokens = Vec::new();
        self.encode(Path::new("data.prompt"), prompt.as_bytes(), &mut tokens)?;
        Ok(tokens)
    }

    /// Returns tokens as text. Tokens that are not part of any text are left out or replaced.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Tokenizer(tokenizer) => catch_panics(|| tokenizer.decode(tokens, false)).unwrap_or_default(),
        }
    }
}

/// Returns all tokens of the sources, in order.
///
/// # Errors
/// Returns an error that names the file, the byte if there is one, and the remedy.
pub fn tokenize_sources(sources: &[String], codec: &Codec) -> Result<Vec<u32>, DataError> {
    let mut tokens = Vec::new();
    for source in sources {
        for (file, text) in read_source(source)? {
            codec.encode(&file, &text, &mut tokens)?;
        }
    }
    Ok(tokens)
}

/// Returns the files of a source with their contents.
fn read_source(source: &str) -> Result<Vec<(PathBuf, Vec<u8>)>, DataError> {
    if source == SHIPPED {
        return Ok(vec![(source.into(), PERSUASION.to_vec())]);
    }
    let path = Path::new(source);
    if !path.exists() {
        let message = "does not exist; set data.source to a text file, a folder of .txt files, or embedded:text";
        return Err(files::data_error(path, message));
    }
    if !path.is_dir() {
        return Ok(vec![(path.to_path_buf(), files::read_file(path)?)]);
    }
    let entries = files::list_folder(path)?;
    let is_text = |file: &&PathBuf| {
        let name = files::file_name(file).to_lowercase();
        name.strip_suffix(".gz").unwrap_or(&name).strip_suffix(".txt").is_some()
    };
    let texts: Vec<&PathBuf> = entries.iter().filter(is_text).collect();
    if texts.is_empty() {
        let found = files::describe_entries(&entries);
        return Err(files::data_error(
            path,
            format!("has no .txt files ({found}); list the files in data.source instead"),
        ));
    }
    texts.into_iter().map(|file| Ok((file.clone(), files::read_file(file)?))).collect()
}

fn open_tokenizer(file: &Path) -> Result<Tokenizer, DataError> {
    let json = files::read_file_within(file, Limit::Record).map_err(|error| DataError {
        message: format!("{}; set data.tokenizer to the model's tokenizer.json (bytes needs no file)", error.message),
        ..error
    })?;
    catch_panics(|| Tokenizer::from_bytes(json)).map_err(|error| {
        files::data_error(
            file,
            format!("is not a readable tokenizer.json ({error}); data.tokenizer: bytes needs no file"),
        )
    })
}

/// A failure of the tokenizer library.
#[derive(Debug, thiserror::Error)]
enum TokenizerError {
    #[error(transparent)]
    Library(tokenizers::Error),
    #[error("it contradicts itself")]
    Panicked,
}

/// Calls the tokenizer library, which panics in many places if a tokenizer.json contradicts itself. Only its
/// author could foresee all of them, so this is the one place besides the memory estimate where a panic is
/// caught. The hook is silent meanwhile, since in a worker it would end the process. No value that the call
/// changed is used after a panic.
fn catch_panics<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TokenizerError> {
    let report = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    panic::set_hook(report);
    result.map_err(|_| TokenizerError::Panicked)?.map_err(TokenizerError::Library)
}

fn encode_text(tokenizer: &Tokenizer, file: &Path, text: &[u8], tokens: &mut Vec<u32>) -> Result<(), DataError> {
    let text = std::str::from_utf8(text).map_err(|error| {
        let message = "is not UTF-8 after this byte; convert it, or set data.tokenizer: bytes";
        files::data_error_at(file, error.valid_up_to(), message)
    })?;
    let mut start = 0;
    while start < text.len() {
        let end = piece_end(text, start);
        let encoding = catch_panics(|| tokenizer.encode_fast(&text[start..end], false)).map_err(|error| {
            files::data_error_at(file, start, format!("the tokenizer fails on the text after this byte ({error})"))
        })?;
        tokens.extend_from_slice(encoding.get_ids());
        start = end;
    }
    Ok(())
}

/// Returns the end of the first line that ends at least one piece after `start`, or the end of the text.
fn piece_end(text: &str, start: usize) -> usize {
    text.as_bytes()
        .get(start + PIECE..)
        .and_then(|rest| rest.iter().position(|byte| *byte == b'\n'))
        .map_or(text.len(), |newline| start + PIECE + newline + 1)
}

#[cfg(test)]
mod tests {
    use super::{BYTES, Codec, PIECE, SHIPPED, piece_end};
    use crate::task::DataError;
    use std::fs;
    use tokenizers::{Tokenizer, models::wordlevel::WordLevel, pre_tokenizers::whitespace::Whitespace};

    fn tokenize_sources(sources: &[String], tokenizer: &str) -> Result<(Vec<u32>, usize), DataError> {
        let codec = Codec::open(tokenizer)?;
        Ok((super::tokenize_sources(sources, &codec)?, codec.vocabulary()))
    }

    /// Returns a tokenizer.json of three words, one of which has a gap before its number.
    fn tokenizer_json() -> String {
        let words = [("[UNK]", 0), ("to", 1), ("be", 5)].map(|(word, id)| (word.to_owned(), id));
        let model = WordLevel::builder().vocab(words.into_iter().collect()).unk_token("[UNK]".into()).build().unwrap();
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(Whitespace {}));
        tokenizer.to_string(false).unwrap()
    }

    #[test]
    fn the_shipped_text_is_a_whole_novel() {
        let (text, vocabulary) = tokenize_sources(&[SHIPPED.into()], BYTES).unwrap();
        assert_eq!((text.len(), vocabulary), (466_854, 256));
        assert!(text.iter().all(|byte| *byte < 128));
    }

    #[test]
    fn a_tokenizer_file_is_used_and_its_vocabulary_reaches_the_highest_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("tokenizer.json"), tokenizer_json()).unwrap();
        fs::write(path("b.txt"), "be or not\nto be").unwrap();
        fs::write(path("a.txt"), "to be").unwrap();
        fs::write(path("c.md"), "ignored").unwrap();
        let read = tokenize_sources(&[folder.path().display().to_string()], &path("tokenizer.json")).unwrap();
        assert_eq!(read, (vec![1, 5, 5, 0, 0, 1, 5], 6));
        let one = tokenize_sources(&[path("b.txt"), path("a.txt")], BYTES).unwrap();
        assert_eq!(one.0.len(), "be or not\nto beto be".len());
        let codec = Codec::open(&path("tokenizer.json")).unwrap();
        let prompt = codec.encode_prompt("be to").unwrap();
        assert_eq!((prompt.as_slice(), codec.decode(&prompt).as_str()), (&[5, 1][..], "be to"));
        let bytes = Codec::open(BYTES).unwrap();
        assert_eq!(bytes.decode(&bytes.encode_prompt("né").unwrap()), "né");
        assert_eq!(bytes.decode(&[104, 105, 0xff, 4000]), "hi\u{fffd}");
    }

    #[test]
    fn long_texts_are_cut_at_line_ends() {
        let line = "to be\n".repeat(PIECE / 6 + 3);
        let end = piece_end(&line, 0);
        assert!((PIECE..PIECE + 7).contains(&end) && line[..end].ends_with('\n'), "{end}");
        assert_eq!(piece_end(&line, end), line.len());
        assert_eq!(piece_end(&"é".repeat(PIECE), 0), 2 * PIECE);
    }

    #[test]
    fn unreadable_sources_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(path("none")).unwrap();
        fs::write(path("empty.txt"), "").unwrap();
        fs::write(path("latin1.txt"), b"caf\xe9 au lait").unwrap();
        fs::write(path("cut.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
        fs::write(path("tokenizer.json"), tokenizer_json()).unwrap();
        fs::write(path("half.json"), &tokenizer_json()[..50]).unwrap();
        for (source, tokenizer, named, offset, wanted) in [
            ("missing.txt", BYTES, "missing.txt", None, "does not exist"),
            ("none", BYTES, "none", None, "the folder is empty"),
            ("empty.txt", BYTES, "empty.txt", Some(0), "empty"),
            ("cut.gz", BYTES, "cut.gz", Some(0), "gzip"),
            ("latin1.txt", "tokenizer.json", "latin1.txt", Some(3), "UTF-8"),
            ("latin1.txt", "half.json", "half.json", None, "tokenizer.json"),
            ("latin1.txt", "missing.json", "missing.json", None, "cannot be read"),
        ] {
            let tokenizer = if tokenizer == BYTES { BYTES.to_owned() } else { path(tokenizer) };
            let error = tokenize_sources(&[path(source)], &tokenizer).unwrap_err();
            assert_eq!((error.file.as_str(), error.offset), (path(named).as_str(), offset), "{error}");
            assert!(error.message.contains(wanted), "{error}");
        }
    }
}
