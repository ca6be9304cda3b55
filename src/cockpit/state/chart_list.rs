//! The charts of a run in the order they are shown: pinned ones first, then group by group; a search narrows them.

use super::State;
use super::metrics::RunMetrics;
use crate::cockpit::quantity::Quantity;
use crate::protocol::metrics::{QUALITY, is_quality};

/// A group of charts; the order of the variants is the order on the screen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChartGroup {
    /// Chosen by the user.
    Pinned,
    /// Training and validation loss.
    Loss,
    /// Metrics of evaluations, such as accuracy.
    Task,
    /// Metrics that the run reports by a name with this prefix: `reward` of `reward/mean`.
    Prefix(String),
    /// Metrics of steps that the run reports by a name without a prefix.
    Metrics,
    /// Gradients, learning rate, skipped steps.
    Optimisation,
    /// Time of a step and its parts.
    Speed,
    /// GPU and host.
    Hardware,
}

impl ChartGroup {
    /// Returns the group of a quantity that is not pinned.
    #[must_use]
    pub fn of(quantity: Quantity, metrics: &RunMetrics) -> Self {
        use Quantity as Q;
        let by_prefix = |name: Option<&str>, otherwise: Self| match name.and_then(|name| name.split_once('/')) {
            // Parts of the loss stand beside it.
            Some(("loss", _)) => Self::Loss,
            Some((prefix, _)) => Self::Prefix(prefix.to_owned()),
            None if name.is_some_and(is_quality) => Self::Prefix(QUALITY.trim_end_matches('.').to_owned()),
            None => otherwise,
        };
        match quantity {
            Q::Loss | Q::Evaluation => Self::Loss,
            Q::EvalNamed(id) => by_prefix(metrics.evals.name(id), Self::Task),
            Q::Named(id) => by_prefix(metrics.steps.name(id), Self::Metrics),
            Q::GradNorm | Q::LearningRate | Q::SkipRate => Self::Optimisation,
            Q::Throughput | Q::StepTime | Q::DataWait => Self::Speed,
            Q::Vram | Q::Temperature | Q::Utilisation | Q::Power | Q::Ram | Q::Cpu => Self::Hardware,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Pinned => "pinned",
            Self::Loss => "loss",
            Self::Task => "task",
            Self::Prefix(prefix) => prefix,
            Self::Metrics => "metrics",
            Self::Optimisation => "optimisation",
            Self::Speed => "speed",
            Self::Hardware => "hardware",
        }
    }
}

/// A chart in its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its group.
    pub group: ChartGroup,
    /// The quantity that it shows.
    pub quantity: Quantity,
}

impl State {
    /// Returns the charts of the charts view that match the search, pinned ones first, in the order they were pinned.
    #[must_use]
    pub fn charts(&self) -> Vec<Listed> {
        let metrics = &self.facts.metrics;
        let mut rest = self.quantities();
        let mut charts = Vec::with_capacity(rest.len());
        for pin in &self.screen.pins {
            if let Some(place) = rest.iter().position(|quantity| quantity.title(metrics) == *pin) {
                charts.push(Listed { group: ChartGroup::Pinned, quantity: rest.remove(place) });
            }
        }
        charts.extend(rest.into_iter().map(|quantity| Listed { group: ChartGroup::of(quantity, metrics), quantity }));
        let words: Vec<String> = self.screen.chart_search.split_whitespace().map(str::to_lowercase).collect();
        charts.retain(|chart| {
            let name = format!("{} {}", chart.group.name(), chart.quantity.title(metrics)).to_lowercase();
            words.iter().all(|word| name.contains(word))
        });
        charts
    }

    /// Reports whether a chart is pinned.
    #[must_use]
    pub fn is_pinned(&self, quantity: Quantity) -> bool {
        let name = quantity.title(&self.facts.metrics);
        self.screen.pins.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::ChartGroup;
    use crate::cockpit::fixture;
    use crate::cockpit::quantity::Quantity;
    use crate::protocol::control::{RunState, Update};
    use crate::store::summary::MetricId;

    #[test]
    fn charts_are_grouped_pinned_and_found() {
        let mut state = fixture::on_gpu((120, 40));
        let mut row = fixture::step_row(2, 701, fixture::NOW);
        row.metrics = [("reward/mean".to_owned(), 1.0), ("entropy".to_owned(), 2.0)].into();
        state.facts.apply_update(Update::Steps { rows: vec![row] }, fixture::NOW);
        let reward = state.facts.metrics.steps.find("reward/mean").map(Quantity::Named).unwrap();
        let mut groups: Vec<String> = state.charts().iter().map(|chart| chart.group.name().to_owned()).collect();
        groups.dedup();
        assert_eq!(groups, ["loss", "task", "reward", "metrics", "optimisation", "speed", "hardware"]);
        state.screen.pins = ["GPU power", "unknown here", "loss"].map(str::to_owned).to_vec();
        let charts = state.charts();
        assert_eq!([&charts[0].group, &charts[1].group], [&ChartGroup::Pinned; 2]);
        assert_eq!([charts[0].quantity, charts[1].quantity], [Quantity::Power, Quantity::Loss]);
        assert_eq!(charts.len(), state.quantities().len(), "a pinned chart is not shown twice");
        for (search, found) in [
            ("accu", vec![Quantity::EvalNamed(MetricId(0))]),
            ("REWARD mean", vec![reward]),
            ("pinned", vec![Quantity::Power, Quantity::Loss]),
            ("zzz", vec![]),
        ] {
            state.screen.chart_search = search.to_owned();
            assert_eq!(state.charts().iter().map(|chart| chart.quantity).collect::<Vec<_>>(), found, "{search}");
        }
    }

    #[test]
    fn a_sensor_that_the_machine_lacks_has_no_chart() {
        let state = fixture::at((120, 40), fixture::status(RunState::Training, 700), fixture::history(700, false));
        let missing = [Quantity::Vram, Quantity::Temperature, Quantity::Utilisation, Quantity::Power];
        assert_eq!(state.missing_sensors(), missing);
        assert!(missing.iter().all(|sensor| !state.quantities().contains(sensor)));
        assert!(state.quantities().contains(&Quantity::Ram));
        assert!(fixture::on_gpu((120, 40)).missing_sensors().is_empty());
        assert!(fixture::connected((120, 40)).missing_sensors().is_empty(), "nothing is known before a reading");
    }
}
