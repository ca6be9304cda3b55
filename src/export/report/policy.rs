//! The content security policy of a page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

/// Returns a policy that allows this style sheet and this script, pictures inside the file, and nothing else.
pub fn of(style: &str, script: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())));
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hash(style),
        hash(script)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_are_those_that_browsers_compute() {
        // `printf 'alert(1)' | openssl dgst -sha256 -binary | base64`.
        assert!(super::of("", "alert(1)").contains("script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"));
    }
}
