//! Named metrics in the curve: an id stands for the name, and a step holds only those it reports.

use super::Extent;
use crate::protocol::metrics::{MAX_NAMES, is_name};

/// Stands for the name of a metric within one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricId(pub u8);

/// The names of a run's metrics in the order of their first appearance; the place of a name is its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricNames(Vec<String>);

impl MetricNames {
    /// Creates the table from names in the order of their ids.
    #[must_use]
    pub fn from_list(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the id of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<MetricId> {
        let place = self.0.iter().position(|known| known == name)?;
        u8::try_from(place).ok().map(MetricId)
    }

    /// Returns the id of a name, which is added if it is new; `None` when the table is full, or for what is no
    /// name: rows of a checkpoint hold what the worker wrote.
    pub fn find_or_add(&mut self, name: &str) -> Option<MetricId> {
        self.find(name).or_else(|| {
            let id =
                u8::try_from(self.0.len()).ok().filter(|_| self.0.len() < MAX_NAMES && is_name(name)).map(MetricId)?;
            self.0.push(name.to_owned());
            Some(id)
        })
    }

    /// Returns the name of an id.
    #[must_use]
    pub fn name(&self, id: MetricId) -> Option<&str> {
        self.0.get(usize::from(id.0)).map(String::as_str)
    }

    /// Returns all ids with their names.
    pub fn iter(&self) -> impl Iterator<Item = (MetricId, &str)> {
        (0..=u8::MAX).map(MetricId).zip(self.0.iter().map(String::as_str))
    }
}

/// Extents of the named metrics of some steps, in the order of their ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedExtents(Vec<(MetricId, Extent)>);

impl NamedExtents {
    /// Returns the extent of a metric.
    #[must_use]
    pub fn get(&self, id: MetricId) -> Option<Extent> {
        let place = self.0.binary_search_by_key(&id, |(known, _)| *known).ok()?;
        Some(self.0[place].1)
    }

    /// Adds the extent of a metric, or merges it with the known one.
    pub fn add(&mut self, id: MetricId, extent: Extent) {
        match self.0.binary_search_by_key(&id, |(known, _)| *known) {
            Ok(place) => self.0[place].1 = self.0[place].1.with(extent),
            Err(place) => self.0.insert(place, (id, extent)),
        }
    }

    /// Merges another set of extents.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(id, extent)| self.add(id, extent));
    }

    /// Returns all extents with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (MetricId, Extent)> {
        self.0.iter().copied()
    }

    /// Removes the metrics whose ids fail a condition.
    pub fn retain(&mut self, keep: impl Fn(MetricId) -> bool) {
        self.0.retain(|(id, _)| keep(*id));
    }
}
