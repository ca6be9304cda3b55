//! The best approximation of a product A·B by one of lower rank (Eckart and Young, 1936), computed without
//! forming the product:
//!
//! ```text
//! A = Qa·Ra,  Bᵀ = Qb·Rb  (Gram–Schmidt, twice)     A·B = Qa·(Ra·Rbᵀ)·Qbᵀ
//! Ra·Rbᵀ = U·Σ·Vᵀ         (one-sided Jacobi; small)   A' = Qa·U·√Σ,  B' = √Σ·Vᵀ·Qbᵀ, cut to rank k
//! ```

/// A matrix of f64, as its columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// Values per column.
    pub height: usize,
    /// The columns.
    pub columns: Vec<Vec<f64>>,
}

impl Columns {
    /// Builds a matrix from values row by row, `[height, width]`.
    #[must_use]
    pub fn from_rows(values: &[f32], height: usize, width: usize) -> Self {
        let column = |c: usize| (0..height).map(|r| f64::from(values[r * width + c])).collect();
        Self { height, columns: (0..width).map(column).collect() }
    }

    /// Builds the transpose of values given row by row, `[width, height]`: rows become columns.
    #[must_use]
    pub fn from_rows_transposed(values: &[f32], width: usize, height: usize) -> Self {
        let columns = (0..width).map(|r| values[r * height..(r + 1) * height].iter().map(|v| f64::from(*v)).collect());
        Self { height, columns: columns.collect() }
    }

    /// Returns the values row by row, `[height, width]`.
    #[must_use]
    pub fn to_rows(&self) -> Vec<f32> {
        (0..self.height).flat_map(|r| self.columns.iter().map(move |column| column[r] as f32)).collect()
    }

    /// Returns the transpose's values row by row, `[width, height]`.
    #[must_use]
    pub fn to_rows_transposed(&self) -> Vec<f32> {
        self.columns.iter().flatten().map(|value| *value as f32).collect()
    }

    /// Returns this matrix times another, given as its columns.
    fn multiply(&self, other: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let product = |weights: &Vec<f64>| {
            let mut sum = vec![0.0; self.height];
            for (column, weight) in self.columns.iter().zip(weights) {
                sum.iter_mut().zip(column).for_each(|(sum, value)| *sum += value * weight);
            }
            sum
        };
        other.iter().map(product).collect()
    }
}

/// Returns the rank-`k` pair closest to `a · bᵀ`, for `a` `[from, r]` and `b` `[to, r]`, and the share of the
/// update's squared norm that it keeps, 1 = all. Missing columns are filled with zeros.
#[must_use]
pub fn truncate_rank(a: &Columns, b: &Columns, k: usize) -> (Columns, Columns, f64) {
    let (qa, ra) = orthonormalize(a);
    let (qb, rb) = orthonormalize(b);
    let rank = a.columns.len();
    // Column j of Ra·Rbᵀ; both R are stored as columns: r[j][i] = R(i, j).
    let mut core: Vec<Vec<f64>> =
        (0..rank).map(|j| (0..rank).map(|i| (0..rank).map(|l| ra[l][i] * rb[l][j]).sum()).collect()).collect();
    let mut v: Vec<Vec<f64>> = (0..rank).map(|j| (0..rank).map(|i| f64::from(u8::from(i == j))).collect()).collect();
    rotate_until_orthogonal(&mut core, &mut v);
    let mut order: Vec<(f64, usize)> = core.iter().map(|column| dot(column, column).sqrt()).zip(0..).collect();
    order.sort_by(|x, y| y.0.total_cmp(&x.0));
    let total: f64 = order.iter().map(|(size, _)| size * size).sum();
    let kept: f64 = order.iter().take(k).map(|(size, _)| size * size).sum();
    let scaled = |column: &[f64], by: f64| column.iter().map(|value| value * by).collect::<Vec<f64>>();
    let best = || order.iter().take(k).filter(|(size, _)| *size > 0.0);
    // Columns of the core already equal u·σ.
    let left: Vec<_> = best().map(|(size, j)| scaled(&core[*j], size.sqrt().recip())).collect();
    let right: Vec<_> = best().map(|(size, j)| scaled(&v[*j], size.sqrt())).collect();
    let whole = |q: &Columns, inner: &[Vec<f64>]| {
        let mut columns = q.multiply(inner);
        columns.resize(k, vec![0.0; q.height]);
        Columns { height: q.height, columns }
    };
    (whole(&qa, &left), whole(&qb, &right), if total > 0.0 { kept / total } else { 1.0 })
}

/// Returns orthonormal columns Q and upper triangular R with Q·R = `m`; a linearly dependent column becomes zeros.
fn orthonormalize(m: &Columns) -> (Columns, Vec<Vec<f64>>) {
    const DEPENDENT: f64 = 1e-12;
    let rank = m.columns.len();
    let mut q: Vec<Vec<f64>> = Vec::with_capacity(rank);
    let mut r = vec![vec![0.0; rank]; rank];
    for (j, column) in m.columns.iter().enumerate() {
        let mut rest = column.clone();
        for _ in 0..2 {
            for (i, unit) in q.iter().enumerate() {
                let along = dot(unit, &rest);
                r[j][i] += along;
                rest.iter_mut().zip(unit).for_each(|(value, unit)| *value -= along * unit);
            }
        }
        let size = dot(&rest, &rest).sqrt();
        if size > DEPENDENT * dot(column, column).sqrt() {
            r[j][j] = size;
            for value in &mut rest {
                *value /= size;
            }
        } else {
            rest.fill(0.0);
        }
        q.push(rest);
    }
    (Columns { height: m.height, columns: q }, r)
}

/// Rotates pairs of columns until all are orthogonal; applies the same rotations to `v`.
fn rotate_until_orthogonal(core: &mut [Vec<f64>], v: &mut [Vec<f64>]) {
    const SWEEPS: usize = 60;
    const RIGHT: f64 = 1e-14;
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..core.len() {
            for q in p + 1..core.len() {
                let (alpha, beta) = (dot(&core[p], &core[p]), dot(&core[q], &core[q]));
                let gamma = dot(&core[p], &core[q]);
                if gamma.abs() <= RIGHT * (alpha * beta).sqrt() {
                    continue;
                }
                turned = true;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                let cosine = tangent.hypot(1.0).recip();
                rotate_columns(core, p, q, cosine, cosine * tangent);
                rotate_columns(v, p, q, cosine, cosine * tangent);
            }
        }
        if !turned {
            return;
        }
    }
}

fn rotate_columns(columns: &mut [Vec<f64>], p: usize, q: usize, cosine: f64, sine: f64) {
    let (head, tail) = columns.split_at_mut(q);
    for (x, y) in head[p].iter_mut().zip(&mut tail[0]) {
        (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::{Columns, dot, truncate_rank};
    use proptest::prelude::*;

    fn matrix(height: usize, width: usize, values: &[f64]) -> Columns {
        let value = |i: usize| values[i % values.len()] + (i * 7 % 13) as f64 * 0.01;
        Columns { height, columns: (0..width).map(|c| (0..height).map(|r| value(c * height + r)).collect()).collect() }
    }

    /// Returns a·bᵀ, row by row.
    fn product(a: &Columns, b: &Columns) -> Vec<f64> {
        let entry = |i: usize, j: usize| a.columns.iter().zip(&b.columns).map(|(a, b)| a[i] * b[j]).sum();
        (0..a.height).flat_map(|i| (0..b.height).map(move |j| entry(i, j))).collect()
    }

    fn distance(x: &[f64], y: &[f64]) -> f64 {
        let difference: Vec<f64> = x.iter().zip(y).map(|(x, y)| x - y).collect();
        dot(&difference, &difference).sqrt()
    }

    #[test]
    fn a_known_matrix_loses_its_smallest_direction() {
        // diag(3, 2, 1): the best approximation of rank 2 keeps 3 and 2.
        let unit = |i: usize, size: f64| (0..3).map(|r| if r == i { size } else { 0.0 }).collect::<Vec<f64>>();
        let a = Columns { height: 3, columns: vec![unit(0, 3.0), unit(1, 2.0), unit(2, 1.0)] };
        let b = Columns { height: 3, columns: vec![unit(0, 1.0), unit(1, 1.0), unit(2, 1.0)] };
        let (a, b, kept) = truncate_rank(&a, &b, 2);
        assert!(distance(&product(&a, &b), &[3.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]) < 1e-12);
        assert!((kept - 13.0 / 14.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn the_cut_is_the_best_one(
            values in prop::collection::vec(-2.0f64..2.0, 20..60), from in 3usize..9, to in 3usize..9, rank in 1usize..6,
            other in prop::collection::vec(-1.0f64..1.0, 10),
        ) {
            let (a, b) = (matrix(from, rank, &values), matrix(to, rank, &values[3..]));
            let whole = product(&a, &b);
            let size = dot(&whole, &whole).sqrt();
            // At the full rank or more, nothing is lost.
            for k in [rank, rank + 2] {
                let (a, b, kept) = truncate_rank(&a, &b, k);
                prop_assert!(distance(&product(&a, &b), &whole) <= 1e-9 * size.max(1e-3));
                prop_assert!((kept - 1.0).abs() < 1e-9 && a.columns.len() == k && b.columns.len() == k);
            }
            let k = rank.div_ceil(2);
            let (cut_a, cut_b, kept) = truncate_rank(&a, &b, k);
            let error = distance(&product(&cut_a, &cut_b), &whole);
            // The kept and the lost part are orthogonal.
            prop_assert!((error * error - (1.0 - kept) * size * size).abs() <= 1e-6 * size * size + 1e-12);
            // No nearby matrix of the same rank is closer.
            let mut near = cut_a.clone();
            for (column, push) in near.columns.iter_mut().zip(&other) {
                for value in column {
                    *value += push * 0.05;
                }
            }
            prop_assert!(distance(&product(&near, &cut_b), &whole) >= error - 1e-9 * size.max(1.0));
        }
    }
}
