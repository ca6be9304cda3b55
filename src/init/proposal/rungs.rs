//! The rungs that a script's arguments make possible, safest last within each kind of trouble.

use super::{Draft, Note, Role, Rung};
use crate::config::knobs::Relief;
use crate::init::attached::Attached;
use crate::init::flag::{Takes, ValueKind};
use crate::init::knobs::knob_value;
use crate::init::profile::{BuiltIn, LadderStep};
use crate::init::python::Literal;
use crate::init::roles::Precisions;
use serde_json::Value;

/// Clipping for a script that does not clip.
const MAX_NORM: f64 = 1.0;

/// A number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    F32,
    Bf16,
    F16,
}

impl Draft<'_> {
    pub(super) fn add_rungs(&mut self) {
        let ladder = self.facts.profile.map(|profile| profile.ladder.as_slice()).unwrap_or_default();
        if ladder.is_empty() {
            for rung in BuiltIn::ALL {
                self.add_built_in(rung);
            }
        }
        for step in ladder {
            match step {
                LadderStep::BuiltIn(rung) => self.add_built_in(*rung),
                LadderStep::Own(rung) => self.add_own(rung),
            }
        }
    }

    fn add_built_in(&mut self, rung: BuiltIn) {
        match rung {
            BuiltIn::Segments => {
                let why =
                    "Less fragmentation of GPU memory. A variable of PyTorch, so the script needs no argument for it.";
                let set = vec![("environment.PYTORCH_ALLOC_CONF".to_owned(), "expandable_segments:True".into())];
                self.push("segments", why, Relief::Memory, set);
            }
            BuiltIn::Accumulate => self.add_accumulate(),
            BuiltIn::Checkpointing => self.add_checkpointing(),
            BuiltIn::Eager => self.add_eager(),
            BuiltIn::Formats => self.add_wider_formats(),
            BuiltIn::LowerRate => self.add_lower_rate(),
            BuiltIn::Safe => self.add_safe(),
        }
    }

    fn push(&mut self, name: &str, why: &str, relieves: Relief, set: Vec<(String, Value)>) {
        if !set.is_empty() {
            let from_full = relieves != Relief::Memory;
            let (name, why) = (name.to_owned(), why.to_owned());
            self.rungs.push(Rung { name, why, relieves: vec![relieves], from_full, set, is_own: false });
        }
    }

    /// Half the micro-batch and twice the accumulation, or by the smallest factor that leaves whole samples.
    fn add_accumulate(&mut self) {
        if let Some(attached) = self.facts.attached {
            return self.add_accumulate_of_loop(attached);
        }
        let Some(batch) = self.flag(Role::MicroBatch) else { return };
        let Some(accumulation) = self.flag(Role::Accumulation) else {
            return self.offer_half_batch(batch);
        };
        let mut numbers = Vec::new();
        for flag in [batch, accumulation] {
            match self.whole(flag).filter(|number| (1..1 << 32).contains(number)) {
                Some(number) => numbers.push(number),
                None => self.notes.push(Note::Unknown(self.facts.flags[flag].spelling().to_owned())),
            }
        }
        let [size, steps] = numbers[..] else { return };
        let Some(factor) = smallest_factor(size) else {
            self.notes.push(Note::SmallestBatch);
            return;
        };
        let paths = [self.path(Role::MicroBatch, batch), self.path(Role::Accumulation, accumulation)];
        if self.command.add_knob(batch, &paths[0], size.into())
            && self.command.add_knob(accumulation, &paths[1], steps.into())
        {
            let [batch, accumulation] = paths;
            let set = vec![(batch, (size / factor).into()), (accumulation, (steps * factor).into())];
            let why = "A smaller micro-batch with more accumulation: the same effective batch in less memory.";
            self.push("accumulate", why, Relief::Memory, set);
        }
    }

    /// Half the batch of a script that cannot accumulate: another effective batch, so you have to allow it.
    fn offer_half_batch(&mut self, batch: usize) {
        let path = self.path(Role::MicroBatch, batch);
        let size = self.whole(batch).filter(|size| (2..1 << 32).contains(size));
        let size = size.filter(|size| self.command.add_knob(batch, &path, (*size).into()));
        self.notes.push(if size.is_some() { Note::HalfBatch } else { Note::NoAccumulation });
        if let Some(size) = size {
            self.offered = Some(Rung {
                name: "half-batch".to_owned(),
                why: "Half the batch in less memory. The effective batch changes, so you have to allow it: remove the # signs."
                    .to_owned(),
                relieves: vec![Relief::Memory],
                from_full: true,
                set: vec![(path, (size / 2).into())],
                is_own: false,
            });
        }
    }

    /// The same for a loop that takes both numbers from its companion; an argument for one of them becomes a knob.
    fn add_accumulate_of_loop(&mut self, attached: Attached) {
        let number = |draft: &Self, own: Option<i64>, role| own.or_else(|| draft.whole(draft.flag(role)?));
        let size = number(self, attached.micro_batch, Role::MicroBatch).filter(|size| *size > 0);
        let steps = number(self, attached.accumulation, Role::Accumulation).filter(|steps| *steps > 0);
        let (Some(size), Some(steps)) = (size, steps) else {
            self.notes.push(Note::Unknown("the batch_size of run.batches".to_owned()));
            return;
        };
        let Some(factor) = smallest_factor(size) else {
            self.notes.push(Note::SmallestBatch);
            return;
        };
        let paths = ["training.micro_batch", "training.accumulation"];
        for (path, value) in paths.into_iter().zip([size, steps]) {
            if !self.command.knobs.iter().any(|(known, _)| known == path) {
                self.command.knobs.push((path.to_owned(), value.into()));
            }
        }
        self.batch_by_companion = true;
        let set = paths.into_iter().map(str::to_owned).zip([(size / factor).into(), (steps * factor).into()]);
        let why = "A smaller micro-batch with more accumulation: the same effective batch in less memory.";
        self.push("accumulate", why, Relief::Memory, set.collect());
    }

    /// Makes a knob of a switch, and returns the setting that turns it on or off; nothing if it already is, or if the
    /// switch cannot be written.
    pub(super) fn turn(&mut self, flag: usize, on: bool) -> Option<(String, Value)> {
        if self.command.is_on(flag) == on {
            return None;
        }
        let (now, then) = (self.command.switch_now(flag)?, self.command.switched(flag, on)?);
        let path = self.own_path(flag);
        self.command.add_knob(flag, &path, now).then_some((path, then))
    }

    fn add_checkpointing(&mut self) {
        let set = self.flag(Role::GradientCheckpointing).and_then(|flag| self.turn(flag, true));
        let why = "Activations are computed again in the backward pass: slower, in much less memory.";
        self.push("checkpointing", why, Relief::Memory, set.into_iter().collect());
    }

    /// No compiled, fused or special kernels.
    fn add_eager(&mut self) {
        let mut set: Vec<(String, Value)> = self.turn_all_off(Role::Compile).into_iter().collect();
        if self.flag(Role::Compile).is_none()
            && ["compile", "torch_compile"].iter().any(|name| (self.facts.mentions)(name))
        {
            set.push(("environment.TORCH_COMPILE_DISABLE".to_owned(), "1".into()));
        }
        set.extend(self.turn_all_off(Role::FusedKernels));
        set.extend(self.plainer_attention());
        let why = "PyTorch's own kernels, without compilation: slower, and helps against faults in kernels.";
        self.push("eager", why, Relief::Kernels, set);
    }

    fn turn_all_off(&mut self, role: Role) -> Vec<(String, Value)> {
        let flags = self.roles.get(&role).cloned().unwrap_or_default();
        flags.into_iter().filter_map(|flag| self.turn(flag, false)).collect()
    }

    fn plainer_attention(&mut self) -> Option<(String, Value)> {
        let flag = self.flag(Role::Attention)?;
        let choices = &self.facts.flags[flag].choices;
        let Some(Literal::Text(now)) = self.command.value(flag).cloned() else { return None };
        let plain = &self.table.plain_attention;
        // An order exists only where the present value is known to be plain or known to be special.
        let allowed = |word: &&String| choices.is_empty() || choices.contains(word);
        let rank = plain.iter().position(|word| *word == now);
        let then = plain.iter().skip(rank.map_or(0, |rank| rank + 1)).find(allowed)?.clone();
        let path = self.own_path(flag);
        self.command.add_knob(flag, &path, now.into()).then(|| (path, then.into()))
    }

    /// Number formats with more range or precision than the present one, nearest first.
    fn add_wider_formats(&mut self) {
        let to_bf16 = "bfloat16 has the range of f32, so losses and gradients overflow less.";
        let to_f32 = "Full precision: slower and in more memory, and helps against NaN.";
        let unknown = self.flag(Role::Precision).filter(|flag| self.command.value(*flag).is_none());
        self.notes.extend(unknown.map(|flag| Note::Unknown(self.facts.flags[flag].spelling().to_owned())));
        if let Some(flag) = self.flag(Role::Precision)
            && let Some(Literal::Text(now)) = self.command.value(flag).cloned()
            && let Some((style, format)) = self.style(flag, &now)
        {
            let words =
                [(Format::Bf16, "bf16", to_bf16, style.bf16.clone()), (Format::F32, "f32", to_f32, style.f32.clone())];
            for (wanted, name, why, word) in words {
                let choices = &self.facts.flags[flag].choices;
                let wider = format != Format::F32 && wanted != format;
                if wider && (choices.is_empty() || choices.contains(&word)) {
                    let path = self.own_path(flag);
                    let set = self.command.add_knob(flag, &path, now.as_str().into()).then(|| (path, word.into()));
                    self.push(name, why, Relief::Numerics, set.into_iter().collect());
                }
            }
            if format != Format::F32 {
                return;
            }
        }
        let on = |draft: &Self, role| draft.flag(role).filter(|flag| draft.command.is_on(*flag));
        let (half, brain) = (on(self, Role::Fp16), on(self, Role::Bf16));
        if let (Some(half), Some(brain)) = (half, self.flag(Role::Bf16).filter(|_| brain.is_none())) {
            let set = [self.turn(half, false), self.turn(brain, true)];
            if set.iter().all(Option::is_some) {
                self.push("bf16", to_bf16, Relief::Numerics, set.into_iter().flatten().collect());
            }
        }
        let set: Vec<(String, Value)> =
            [half, brain].into_iter().flatten().filter_map(|flag| self.turn(flag, false)).collect();
        self.push("f32", to_f32, Relief::Numerics, set);
    }

    /// Returns the words for number formats in the style of an argument, and the present format.
    fn style(&self, flag: usize, now: &str) -> Option<(&Precisions, Format)> {
        let choices = &self.facts.flags[flag].choices;
        let fits = |style: &&Precisions| {
            [&style.f32, &style.bf16].iter().all(|word| choices.is_empty() || choices.contains(*word))
        };
        let format = |style: &Precisions| {
            let words = [(&style.f16, Format::F16), (&style.bf16, Format::Bf16), (&style.f32, Format::F32)];
            words.into_iter().find(|(word, _)| *word == now).map(|(_, format)| format)
        };
        // `no` is a word of mixed precision alone; a key of a settings file may mean the format itself.
        let is_of_weights = matches!(
            self.facts.flags[flag].takes,
            Takes::Setting { .. } | Takes::KeyValue { .. } | Takes::Constant { .. }
        ) && !self.facts.flags[flag].key.contains("mixed");
        let styles = &self.table.precisions[usize::from(is_of_weights)..];
        let known = |style| format(style).map(|format| (style, format));
        styles.iter().filter(fits).find_map(known).or_else(|| styles.iter().find_map(known))
    }

    /// Half the learning rate, with clipping where the script can clip.
    fn add_lower_rate(&mut self) {
        let Some(flag) = self.flag(Role::LearningRate) else { return };
        let Some(rate) = self.number(flag).filter(|rate| *rate > 0.0) else {
            self.notes.push(Note::Unknown(self.facts.flags[flag].spelling().to_owned()));
            return;
        };
        let path = self.path(Role::LearningRate, flag);
        if !self.command.fits(flag, rate / 2.0) {
            return;
        }
        if !self.command.add_knob(flag, &path, rate.into()) {
            return;
        }
        let mut set = vec![(path, (rate / 2.0).into())];
        set.extend(self.clip());
        let why = if set.len() > 1 {
            "Half the learning rate and tighter clipping, against divergence."
        } else {
            "Half the learning rate, against divergence."
        };
        self.push("lower-rate", why, Relief::Numerics, set);
    }

    fn clip(&mut self) -> Option<(String, Value)> {
        let flag = self.flag(Role::Clipping)?;
        let takes_number = matches!(
            self.facts.flags[flag].takes,
            Takes::Value(ValueKind::Integer | ValueKind::Number)
                | Takes::Assignment(ValueKind::Number)
                | Takes::KeyValue { kind: ValueKind::Integer | ValueKind::Number, .. }
                | Takes::Setting { kind: ValueKind::Integer | ValueKind::Number, .. }
                | Takes::Constant { kind: ValueKind::Integer | ValueKind::Number, .. }
        );
        let now = self.number(flag).filter(|_| takes_number)?;
        let clips = now > 0.0;
        let path = if clips { self.path(Role::Clipping, flag) } else { self.own_path(flag) };
        if clips && !self.command.fits(flag, now / 2.0) {
            return None;
        }
        let then = if clips { (now / 2.0).into() } else { MAX_NORM.into() };
        let now = if clips { Some(now.into()) } else { self.command.value(flag).and_then(knob_value) };
        self.command.add_knob(flag, &path, now?).then_some((path, then))
    }

    /// The whole ladder at once, in a smaller micro-batch than any rung above. A run that has left `full` for its numbers
    /// or its kernels finds here what it needs if memory runs out too.
    fn add_safe(&mut self) {
        let set_by = |rung: &Rung| <[_; 2]>::try_from(rung.set.clone()).ok().filter(|_| rung.name == "accumulate");
        let Some([(batch, size), (accumulation, steps)]) = self.rungs.iter().find_map(set_by) else { return };
        let (Some(size), Some(steps)) = (size.as_i64(), steps.as_i64()) else { return };
        // A batch of one sample is an error for some layers.
        let smaller = |size: i64| smallest_factor(size).map(|factor| size / factor).filter(|size| *size > 1);
        let Some(mut less) = smaller(size) else { return };
        let widens = |rung: &Rung| ["bf16", "f32"].contains(&rung.name.as_str());
        let widest = self.rungs.iter().rfind(|rung| widens(rung)).map(|rung| rung.name.as_str());
        // Wider numbers take the memory back, so they need half the micro-batch once more.
        let halved = widest.and(smaller(less));
        less = halved.unwrap_or(less);
        let is_in = |rung: &&Rung| {
            let is_known = rung.name != "accumulate" && !rung.is_own;
            is_known && (!widens(rung) || halved.and(widest) == Some(rung.name.as_str()))
        };
        let others: Vec<&Rung> = self.rungs.iter().filter(is_in).collect();
        let of_numerics = others.iter().filter(|rung| rung.relieves == [Relief::Numerics]).count();
        let mut relieves: Vec<Relief> = others.iter().flat_map(|rung| rung.relieves.clone()).collect();
        relieves.dedup();
        let mut set = vec![(batch, less.into()), (accumulation, (size * steps / less).into())];
        set.extend(others.iter().flat_map(|rung| rung.set.clone()));
        // One remedy alone was tried before: a lower rate goes on, and another relieves nothing more.
        let lower = others.iter().find(|rung| rung.name == "lower-rate").and_then(|rung| rung.set.first());
        let lowest =
            lower.filter(|_| of_numerics == 1).and_then(|(path, rate)| Some((path.clone(), rate.as_f64()? / 2.0)));
        relieves.retain(|relief| *relief != Relief::Numerics || of_numerics > 1 || lowest.is_some());
        let mut why = "The remedies above at once, in a still smaller micro-batch: the slowest rung, and the safest.";
        if let Some((path, rate)) = lowest {
            set.iter_mut().filter(|(set, _)| *set == path).for_each(|(_, value)| *value = rate.into());
            why = "The remedies above at once, a quarter of the learning rate and a still smaller micro-batch: the safest.";
        }
        let (name, why) = ("safe".to_owned(), why.to_owned());
        self.rungs.push(Rung { name, why, relieves, from_full: true, set, is_own: false });
    }
}

fn smallest_factor(number: i64) -> Option<i64> {
    (2..=number.min(1 << 16)).find(|factor| number % factor == 0)
}
