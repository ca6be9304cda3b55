//! The numbers of a test set, where a script evaluates it beside the validation.

use super::line::Line;

/// The data that a source has evaluated so far.
#[derive(Debug, Default)]
pub struct TestSet {
    /// An evaluation of other data than the test set was printed.
    validates: bool,
    /// An evaluation before the final one was printed.
    evaluates: bool,
}

impl TestSet {
    /// Keeps the numbers of the test set apart from those of the validation, if a script evaluates both.
    pub fn keep_apart(&mut self, line: &mut Line) {
        if !line.has_evaluation() {
            return;
        }
        self.validates |= !line.is_test;
        self.evaluates |= !line.is_final;
        // Scripts call their validation a test, too.
        if !line.is_test || !(self.validates || line.is_final && self.evaluates) {
            return;
        }
        for (name, _) in &mut line.values {
            if let Some(rest) = name.strip_prefix("eval_").filter(|rest| !rest.starts_with("test")) {
                *name = format!("eval_test_{rest}");
            }
        }
    }
}
