//! The folder of an attempt, which nobody else may have prepared.

use super::{HarnessArgs, HarnessError};
use crate::config::command::AttemptContext;
use crate::store::permissions::{Owners, claim_folder};
use crate::untrusted::text;

/// Makes the folder of the attempt. Returns a note about one that another user put in its place.
pub(super) fn claim_attempt_dir(args: &HarnessArgs, context: &AttemptContext) -> Result<Option<String>, HarnessError> {
    let owners = Owners::of_run(args.run_dir.path());
    let all = context.attempt_dir.parent().map_or(Ok(None), |attempts| claim_folder(attempts, owners));
    let own = all.and_then(|_| claim_folder(&context.attempt_dir, owners));
    let aside = own.map_err(HarnessError::of("the attempt's folder"))?;
    Ok(aside.map(|aside| {
        format!("another user made {}; it was set aside as {}", text::path(&context.attempt_dir), text::path(&aside))
    }))
}
