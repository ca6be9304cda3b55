//! The trained parameters of a model and their rules, resolved once at the start from the model's parameter
//! paths, `training.trained` and `optimizer.groups`.

use super::lora::{self, rank_change::adapted_layer};
use super::params::{Trail, follow_trail};
use super::task::Task;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, backend::AutodiffBackend};
use downshift_core::config::{
    groups::{Group, Trained, matches},
    knobs::{self, Preset},
};
use downshift_core::recipe::phases::SearchPhase;
use std::collections::BTreeMap;

/// A mistake in `training.trained` or `optimizer.groups` that only the model's parameters reveal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// A pattern of a group matches no parameter.
    #[error("optimizer.groups.{group}.match: `{pattern}` matches no parameter; the first ones are {}", .first.join(", "))]
    NoMatch {
        /// The group's name.
        group: String,
        /// The pattern.
        pattern: String,
        /// The first parameters of the model.
        first: Vec<String>,
    },
    /// Every parameter is frozen.
    #[error("training.trained and optimizer.groups leave nothing to train; unfreeze at least one parameter")]
    NothingTrained,
    /// More blocks to train than the model has.
    #[error("training.trained: the model has {blocks} blocks, so the last {last} cannot be trained")]
    TooFewBlocks {
        /// Blocks of the model.
        blocks: usize,
        /// Blocks to train.
        last: usize,
    },
    /// A head that the task does not name.
    #[error("training.trained: the model has no head; name it in optimizer.groups with `frozen: false`")]
    NoHead,
    /// Settings for an architecture that the task does not have.
    #[error(
        "optimizer.architecture: task {task} has no architecture to search; remove the section, or use task: search"
    )]
    NoArchitecture {
        /// The task's name.
        task: &'static str,
    },
    /// A search one of whose phases would have nothing to update.
    #[error(
        "training.trained and optimizer.groups freeze {}; a search trains both in turn, so unfreeze them",
        if *phase == SearchPhase::Architecture { "the architecture" } else { "all weights" }
    )]
    IdlePhase {
        /// The phase.
        phase: SearchPhase,
    },
    /// A model without adapters.
    #[error("training.trained: the model has no adapters; add `model.lora`")]
    NoAdapters,
}

/// The rules for one trained parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamRule {
    /// The factor on the run's learning rate.
    pub lr_factor: f64,
    /// Decoupled weight decay; tensors of one dimension are exempt regardless.
    pub weight_decay: f64,
    /// The index into [`ParamRules::max_norms`] of the norm that clips its gradient.
    pub clip: usize,
    /// The phase that updates it.
    pub phase: SearchPhase,
}

/// The trained parameters and their rules.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamRules {
    /// Every trained parameter by path; all others are frozen.
    pub rules: BTreeMap<String, ParamRule>,
    /// The norms that gradients are clipped to: first the shared one, for all parameters without a norm of
    /// their own, then one for each group that has its own.
    pub max_norms: Vec<Option<f64>>,
}

impl ParamRules {
    /// Resolves which of the parameters at `paths` are trained.
    ///
    /// # Errors
    /// Returns an error when a pattern matches nothing or nothing would be trained.
    pub fn new<T: Task>(preset: &Preset, paths: &[String]) -> Result<Self, RulesError> {
        let optimizer = &preset.optimizer;
        let groups = &optimizer.groups.0;
        let mut all = Self { rules: BTreeMap::new(), max_norms: vec![optimizer.max_norm] };
        let mut clips = Vec::new();
        for (name, group) in groups {
            check_patterns(name, group, paths)?;
            clips.push(group.max_norm.map_or(0, |most| {
                all.max_norms.push(Some(most));
                all.max_norms.len() - 1
            }));
        }
        let by_default = Selection::new::<T>(preset.training.trained.as_ref(), paths)?;
        for path in paths.iter().filter(|path| !path.ends_with(&format!(".{}", lora::SCALE))) {
            let found = groups.iter().zip(&clips).find(|((_, group), _)| group.matches.matches(path));
            let searched = T::ARCHITECTURE.iter().any(|pattern| matches(pattern, path));
            let phase = if searched { SearchPhase::Architecture } else { SearchPhase::Weights };
            let trained = || searched || by_default.contains(path);
            let frozen = found.and_then(|((_, group), _)| group.frozen).unwrap_or_else(|| !trained());
            if !frozen {
                let group = found.map(|((_, group), clip)| (group, *clip));
                all.rules.insert(path.clone(), rule_for(optimizer, group, phase));
            }
        }
        if all.rules.is_empty() {
            return Err(RulesError::NothingTrained);
        }
        all.check_phases::<T>(optimizer)?;
        Ok(all)
    }

    /// Checks that each phase of a search updates something, and that nothing else names an architecture.
    fn check_phases<T: Task>(&self, optimizer: &knobs::Optimizer) -> Result<(), RulesError> {
        if T::ARCHITECTURE.is_empty() {
            let named = optimizer.architecture.is_some();
            return if named { Err(RulesError::NoArchitecture { task: T::NAME }) } else { Ok(()) };
        }
        let is_idle = |phase: &SearchPhase| !self.rules.values().any(|rule| rule.phase == *phase);
        SearchPhase::ALL.into_iter().find(is_idle).map_or(Ok(()), |phase| Err(RulesError::IdlePhase { phase }))
    }

    /// Reports whether a parameter is trained.
    #[must_use]
    pub fn is_trained(&self, path: &str) -> bool {
        self.rules.contains_key(path)
    }

    /// Describes how much is trained, if anything is frozen.
    #[must_use]
    pub fn frozen_note(&self, shapes: &BTreeMap<String, Vec<usize>>) -> Option<String> {
        let count = |shape: &Vec<usize>| shape.iter().product::<usize>();
        let all: usize = shapes.values().map(count).sum();
        let trained: usize =
            shapes.iter().filter(|(path, _)| self.is_trained(path)).map(|(_, shape)| count(shape)).sum();
        (trained < all).then(|| format!("trains {trained} of {all} parameters; the others are frozen"))
    }

    /// Returns the factors of gradients, one for each of [`ParamRules::max_norms`].
    #[must_use]
    pub fn clip_scales(&self, norms: &[f64]) -> Vec<f64> {
        let scale = |(most, norm): (&Option<f64>, &f64)| most.map_or(1.0, |most| most / (norm + 1e-6)).min(1.0);
        self.max_norms.iter().zip(norms).map(scale).collect()
    }

    /// Returns the model with gradients disabled for frozen parameters.
    pub fn freeze<A: AutodiffBackend, M: Module<A>>(&self, model: M) -> M {
        struct Freeze<'a> {
            trail: Trail,
            rules: &'a ParamRules,
        }
        impl<A: AutodiffBackend> ModuleMapper<A> for Freeze<'_> {
            follow_trail!();
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
                let trained = self.rules.is_trained(&self.trail.path());
                param.set_require_grad(trained)
            }
        }
        model.map(&mut Freeze { trail: Trail::default(), rules: self })
    }
}

fn rule_for(optimizer: &knobs::Optimizer, group: Option<(&Group, usize)>, phase: SearchPhase) -> ParamRule {
    let (group, clip) = group.map_or((None, 0), |(group, clip)| (Some(group), clip));
    let weight_decay = match phase {
        SearchPhase::Weights => optimizer.weight_decay,
        SearchPhase::Architecture => optimizer.architecture.unwrap_or_default().weight_decay,
    };
    ParamRule {
        lr_factor: group.map_or(1.0, |group| group.lr_factor),
        weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(weight_decay),
        clip,
        phase,
    }
}

fn check_patterns(name: &str, group: &Group, paths: &[String]) -> Result<(), RulesError> {
    let all = group.matches.as_slice();
    let idle = all.iter().find(|pattern| !paths.iter().any(|path| matches(pattern, path)));
    idle.map_or(Ok(()), |pattern| {
        let (group, pattern) = (name.to_owned(), pattern.clone());
        Err(RulesError::NoMatch { group, pattern, first: paths.iter().take(8).cloned().collect() })
    })
}

/// The parameters selected by `training.trained`.
struct Selection {
    trained: Trained,
    head: Vec<&'static str>,
    first_block: usize,
    first_adapted: usize,
}

impl Selection {
    fn new<T: Task>(trained: Option<&Trained>, paths: &[String]) -> Result<Self, RulesError> {
        let adapted = paths.iter().any(|path| adapted_layer(path).is_some());
        let usual = Trained { all: !adapted, adapters: adapted, ..Trained::default() };
        let trained = trained.cloned().unwrap_or(usual);
        let there = |pattern: &&&str| paths.iter().any(|path| matches(pattern, path));
        let mut head: Vec<&'static str> = T::HEAD.iter().filter(there).copied().collect();
        if !paths.iter().any(|path| matches("head", path)) {
            head.extend(T::TIED_HEAD);
        }
        let blocks = paths.iter().filter_map(|path| block_of(path)).max().map_or(0, |last| last + 1);
        let last = trained.last_blocks.max(trained.last_adapters);
        if last > blocks {
            Err(RulesError::TooFewBlocks { blocks, last })
        } else if trained.head && head.is_empty() {
            Err(RulesError::NoHead)
        } else if (trained.adapters || trained.last_adapters > 0) && !adapted {
            Err(RulesError::NoAdapters)
        } else {
            let (first_block, first_adapted) = (blocks - trained.last_blocks, blocks - trained.last_adapters);
            Ok(Self { trained, head, first_block, first_adapted })
        }
    }

    fn contains(&self, path: &str) -> bool {
        if adapted_layer(path).is_some() {
            let late =
                self.trained.last_adapters > 0 && block_of(path).is_some_and(|block| block >= self.first_adapted);
            return self.trained.adapters || self.trained.all || late;
        }
        self.trained.all
            || (self.trained.head && self.head.iter().any(|pattern| matches(pattern, path)))
            || (self.trained.last_blocks > 0 && block_of(path).is_some_and(|block| block >= self.first_block))
    }
}

/// Returns the block number of a parameter: the first number in its path.
fn block_of(path: &str) -> Option<usize> {
    path.split('.').find_map(|part| part.parse().ok())
}
