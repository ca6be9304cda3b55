//! The loss, where nothing is called so.

use super::Section;

/// Names of a cross entropy, which is the loss if no other is named beside it.
const CROSS_ENTROPIES: [&str; 3] = ["xent", "cross_entropy", "cross-entropy"];

/// Reports whether a name, without the place where it was measured, is that of a cross entropy.
pub fn is_cross_entropy(rest: &str) -> bool {
    CROSS_ENTROPIES.contains(&rest)
}

/// Calls a cross entropy the loss if none is named beside it.
pub fn name_cross_entropy(values: &mut [(String, f64)]) {
    for (of_evaluation, name) in [(false, "loss"), (true, "eval_loss")] {
        if values.iter().any(|(key, _)| key == name) {
            continue;
        }
        let is_meant = |key: &str| {
            let (section, rest) = super::place(key);
            is_cross_entropy(rest) && (section == Section::Evaluation) == of_evaluation
        };
        if let Some((key, _)) = values.iter_mut().find(|(key, _)| is_meant(key)) {
            name.clone_into(key);
        }
    }
}

/// Adds the loss of a boosted model, which names its metrics alone: the first one, if less of it is better.
pub fn add_objective(values: &mut Vec<(String, f64)>) {
    let rest = |key: &str| super::place(key).1.to_owned();
    let is_score = |name: &str| {
        super::is_score(name) || ["auc", "map", "ndcg", "pre", "r2"].iter().any(|begun| name.starts_with(begun))
    };
    let Some(objective) = values.first().map(|(key, _)| rest(key)).filter(|name| !is_score(name)) else { return };
    for (section, name) in [(Section::Training, "loss"), (Section::Evaluation, "eval_loss")] {
        let measured = values.iter().find(|(key, _)| super::place(key).0 == section && rest(key) == objective);
        if let Some(value) = measured.map(|(_, value)| *value).filter(|_| !values.iter().any(|(key, _)| key == name)) {
            values.push((name.to_owned(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::log_metrics::names::canonical_values;

    fn names(keys: &[&str]) -> Vec<String> {
        let found = keys.iter().map(|key| ((*key).to_owned(), 0.5)).collect();
        canonical_values(found).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_cross_entropy_is_the_loss_where_no_other_is() {
        assert_eq!(names(&["xent", "lr"]), ["loss", "lr"]);
        assert_eq!(names(&["cross_entropy", "kl", "total_loss"]), ["cross_entropy", "kl", "loss"]);
        assert_eq!(names(&["val_cross_entropy", "val_loss"]), ["eval_cross_entropy", "eval_loss"]);
        assert_eq!(names(&["train_loss", "val_cross-entropy"]), ["loss", "eval_loss"]);
        assert_eq!(names(&["cost"]), ["cost"]);
    }
}
