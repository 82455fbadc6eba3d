//! Looks up kernel times in measured tables: at a measured point, between points, and outside the
//! measured range. Extrapolation scales with the minimum time that the hardware allows (SOL, "speed
//! of light").

use std::collections::BTreeMap;

/// Measured kernel times in ms along one axis, in ascending order of the axis value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LatencyCurve(Vec<(u64, f64)>);

/// Points at an end of a latency curve that determine the hardware efficiency beyond that end: only
/// the last point, or the median of the last three points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtrapolationReferencePoints {
    Last,
    MedianOfThree,
}

impl LatencyCurve {
    pub(super) fn add_measured_point(&mut self, axis_value: u64, time_ms: f64) {
        if let Err(place) = self.0.binary_search_by_key(&axis_value, |point| point.0) {
            self.0.insert(place, (axis_value, time_ms));
        }
    }

    pub(super) fn covers_axis_value(&self, axis_value: u64) -> bool {
        matches!((self.0.first(), self.0.last()), (Some(a), Some(b)) if a.0 <= axis_value && axis_value <= b.0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the sum of the kernel times at the axis values `axis_values` (ascending), in ms;
    /// `None` if a value is outside of the measured range.
    pub(super) fn sum_of_times_ms(&self, axis_values: &[u64]) -> Option<f64> {
        let mut place =
            self.0.partition_point(|point| point.0 < *axis_values.first().unwrap_or(&0));
        let mut sum = 0.0;
        for &x in axis_values {
            while self.0.get(place)?.0 < x {
                place += 1;
            }
            let (x1, y1) = self.0[place];
            sum += match x1 == x {
                true => y1,
                false => {
                    let (x0, y0) = *self.0.get(place.checked_sub(1)?)?;
                    y0 + (y1 - y0) * ((x as f64 - x0 as f64) / (x1 as f64 - x0 as f64))
                }
            };
        }
        Some(sum)
    }

    /// Returns the kernel time at axis value `at`, in ms, with the last point as reference beyond
    /// the measured range; without any point, the hardware minimum `sol`.
    pub(super) fn time_or_minimum_ms(&self, at: u64, sol: &dyn Fn(u64) -> f64) -> f64 {
        let time = self.kernel_time_ms(at, ExtrapolationReferencePoints::Last, sol);
        time.unwrap_or_else(|| sol(at))
    }

    /// Returns the kernel time at axis value `at`, in ms: interpolated, or beyond the measured
    /// range extrapolated with the hardware efficiency at that end.
    pub(super) fn kernel_time_ms(
        &self,
        at: u64,
        end: ExtrapolationReferencePoints,
        sol: &dyn Fn(u64) -> f64,
    ) -> Option<f64> {
        let place = self.0.partition_point(|point| point.0 < at);
        let below = place.checked_sub(1).map(|i| self.0[i]);
        match (below, self.0.get(place)) {
            (_, Some(&(x, y))) if x == at => Some(y),
            (Some((x0, y0)), Some(&(x1, y1))) => {
                let share = (at as f64 - x0 as f64) / (x1 as f64 - x0 as f64);
                Some(y0 + (y1 - y0) * share)
            }
            (None, None) => None,
            (below, _) => {
                let count = match end {
                    ExtrapolationReferencePoints::Last => 1,
                    ExtrapolationReferencePoints::MedianOfThree => 3,
                };
                let points: Vec<_> = match below {
                    Some(_) => self.0.iter().rev().take(count).collect(),
                    None => self.0.iter().take(count).collect(),
                };
                let mut uses: Vec<f64> = points.iter().map(|(x, y)| sol(*x) / y).collect();
                uses.sort_by(f64::total_cmp);
                let middle = uses.len() / 2;
                let used = match uses.len() % 2 {
                    1 => uses[middle],
                    _ => (uses[middle - 1] + uses[middle]) / 2.0,
                };
                Some(sol(at) / used)
            }
        }
    }
}

/// Shape of a weight matrix (outputs, inputs) and its kernel times by number of rows.
pub(super) type GemmCurve = ((u64, u64), LatencyCurve);

/// Holds the kernel times of all measured matrix shapes, by number of rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct GemmTable {
    /// Measured matrix shapes; of several shapes at the same distance from a requested shape, the
    /// first one is used.
    shapes: Vec<GemmCurve>,
    places: BTreeMap<(u64, u64), usize>,
    /// Measured matrix shapes near each shape passed to [`Self::cache_nearby_gemm_shapes`]:
    /// distance in doublings and index in `shapes`, nearest first.
    near: BTreeMap<(u64, u64), Vec<(f64, usize)>>,
}

/// Maximum distance between a requested matrix shape and the measured shape whose times are used
/// instead, in doublings of a size.
const MAX_SHAPE_DISTANCE: f64 = 2.0;
/// Maximum number of measured points from which a kernel time is extrapolated.
const MAX_NEAR_POINTS: usize = 4;

impl GemmTable {
    pub(super) fn from_gemm_curves(curves: Vec<GemmCurve>) -> Self {
        let places = curves.iter().enumerate();
        Self {
            places: places.rev().map(|(i, (shape, _))| (*shape, i)).collect(),
            shapes: curves,
            near: BTreeMap::new(),
        }
    }

    /// Caches the measured matrix shapes near the shape of `n` outputs and `k` inputs.
    pub(super) fn cache_nearby_gemm_shapes(&mut self, n: u64, k: u64) {
        if !self.places.contains_key(&(n, k)) {
            self.near.insert((n, k), self.neighbouring_shapes(n, k));
        }
    }

    fn neighbouring_shapes(&self, n: u64, k: u64) -> Vec<(f64, usize)> {
        let apart = |a: u64, b: u64| (a as f64 / b as f64).log2();
        let sites = self.shapes.iter().enumerate();
        let mut near: Vec<(f64, usize)> = sites
            .map(|(i, (shape, _))| (apart(n, shape.0).hypot(apart(k, shape.1)), i))
            .filter(|(distance, _)| *distance <= MAX_SHAPE_DISTANCE)
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        near
    }

    /// Returns the time of multiplying `m` rows by a matrix of `n` outputs and `k` inputs, in ms.
    pub(super) fn gemm_time_ms(
        &self,
        (m, n, k): (u64, u64, u64),
        sol: &dyn Fn(u64, u64, u64) -> f64,
    ) -> Option<f64> {
        if let Some(place) = self.places.get(&(n, k)) {
            let curve = &self.shapes[*place].1;
            return curve
                .kernel_time_ms(m, ExtrapolationReferencePoints::MedianOfThree, &|m| sol(m, n, k));
        }
        let covered = self.shapes.iter().any(|site| site.1.covers_axis_value(m));
        let asked = |site: &GemmCurve| !covered || site.1.covers_axis_value(m);
        let found;
        let near = match self.near.get(&(n, k)) {
            Some(near) => near,
            None => {
                found = self.neighbouring_shapes(n, k);
                &found
            }
        };
        let near = near.iter().map(|(distance, i)| (*distance, &self.shapes[*i]));
        let near = near.filter(|(_, site)| asked(site));
        let mut near: Vec<(f64, &GemmCurve)> = near.take(MAX_NEAR_POINTS).collect();
        if near.is_empty() {
            let asked: Vec<_> = self.shapes.iter().filter(|site| asked(site)).collect();
            near = self.shapes_with_one_larger_axis(&asked, n, k);
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            near.truncate(MAX_NEAR_POINTS);
        }
        let (mut weights, mut sum) = (0.0, 0.0);
        for (distance, ((n, k), curve)) in near {
            let time =
                curve.kernel_time_ms(m, ExtrapolationReferencePoints::MedianOfThree, &|m| {
                    sol(m, *n, *k)
                })?;
            let weight = 1.0 / (distance * distance + 1e-12);
            weights += weight;
            sum += weight * (sol(m, *n, *k) / time);
        }
        (weights > 0.0).then(|| sol(m, n, k) / (sum / weights))
    }

    /// Returns measured matrix shapes with their distances from `(n, k)`, in doublings, if exactly
    /// one of `n` and `k` is larger than in any measured shape. The shapes may differ in the other
    /// of `n` and `k` by at most [`MAX_SHAPE_DISTANCE`].
    fn shapes_with_one_larger_axis<'a>(
        &self,
        asked: &[&'a GemmCurve],
        n: u64,
        k: u64,
    ) -> Vec<(f64, &'a GemmCurve)> {
        let range = |of: &dyn Fn(&(u64, u64)) -> u64| {
            let values = asked.iter().map(|site| of(&site.0));
            (values.clone().min().unwrap_or(0), values.max().unwrap_or(0))
        };
        let (ns, ks) = (range(&|shape| shape.0), range(&|shape| shape.1));
        if n < ns.0 || k < ks.0 || (n > ns.1) == (k > ks.1) {
            return Vec::new();
        }
        let on_k = n > ns.1;
        let distance = |shape: &(u64, u64)| match on_k {
            true => (k as f64 / shape.1 as f64).log2().abs(),
            false => (n as f64 / shape.0 as f64).log2().abs(),
        };
        asked
            .iter()
            .filter(|site| distance(&site.0) <= MAX_SHAPE_DISTANCE)
            .map(|site| {
                let (n2, k2) = site.0;
                let far = (n as f64 / n2 as f64).log2().hypot((k as f64 / k2 as f64).log2());
                (far, *site)
            })
            .collect()
    }
}

/// Holds measured attention times in ms over three axes (such as heads, length, requests),
/// outermost first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AttentionTimeTable {
    leaves: BTreeMap<u64, BTreeMap<u64, BTreeMap<u64, f64>>>,
    /// Index of the axis on which square roots are interpolated, as prefill time grows with the
    /// square of the length; `None`: no axis.
    root_axis: Option<usize>,
}

type TablePoint = [u64; 3];
type HardwareMinimum<'a> = &'a dyn Fn(TablePoint) -> f64;

impl AttentionTimeTable {
    pub(super) fn with_square_root_axis(root_axis: Option<usize>) -> Self {
        let leaves = BTreeMap::new();
        Self { leaves, root_axis }
    }

    pub(super) fn add_measured_point(&mut self, [a, b, c]: TablePoint, time_ms: f64) {
        let inner = self.leaves.entry(a).or_default().entry(b).or_default();
        inner.entry(c).or_insert(time_ms);
    }

    pub(super) fn raise_to_hardware_minimum(&mut self, sol: HardwareMinimum<'_>) {
        for (a, inner) in &mut self.leaves {
            for (b, inner) in inner {
                for (c, time) in inner {
                    *time = time.max(sol([*a, *b, *c]));
                }
            }
        }
    }

    /// Returns the attention time at a point, in ms; without any measurement, the hardware minimum
    /// `sol`.
    pub(super) fn time_or_minimum_ms(&self, at: TablePoint, sol: HardwareMinimum<'_>) -> f64 {
        let time = self.interpolate(at, sol).or_else(|| self.extrapolate(at, sol));
        time.unwrap_or_else(|| sol(at))
    }

    fn interpolate(&self, at: TablePoint, sol: HardwareMinimum<'_>) -> Option<f64> {
        self.interpolate_axis(0, &self.leaves, at, sol, &|inner| {
            self.interpolate_axis(1, inner, at, sol, &|inner| {
                self.interpolate_axis(2, inner, at, sol, &|time| Some(*time))
            })
        })
    }

    /// Returns the attention times at `[a, b]` along the last axis within the measured range, where
    /// they are piecewise linear. The curve is empty if `a` was not measured.
    pub(super) fn curve_along_last_axis(&self, a: u64, b: u64) -> LatencyCurve {
        let mut row = LatencyCurve::default();
        let Some(inner) = self.leaves.get(&a) else {
            return row;
        };
        let above = inner.range(b..).next();
        let below = match above {
            Some((key, _)) if *key == b => above,
            _ => inner.range(..b).next_back(),
        };
        let (Some((_, above)), Some((_, below))) = (above, below) else {
            return row;
        };
        let ends =
            |times: &BTreeMap<u64, f64>| Some((*times.keys().next()?, *times.keys().next_back()?));
        let (Some(one), Some(other)) = (ends(above), ends(below)) else {
            return row;
        };
        let (first, last) = (one.0.max(other.0), one.1.min(other.1));
        for c in above.keys().chain(below.keys()).copied() {
            // Interpolated times do not depend on the hardware minimum.
            if let Some(time) = self.interpolate([a, b, c], &|_| 1.0)
                && (first..=last).contains(&c)
            {
                row.add_measured_point(c, time);
            }
        }
        row
    }

    /// Interpolates attention times on one axis; returns `None` outside of its measured range.
    fn interpolate_axis<V>(
        &self,
        axis: usize,
        map: &BTreeMap<u64, V>,
        at: TablePoint,
        sol: HardwareMinimum<'_>,
        below: &dyn Fn(&V) -> Option<f64>,
    ) -> Option<f64> {
        let (high, above) = map.range(at[axis]..).next()?;
        if *high == at[axis] {
            return below(above);
        }
        let (low, under) = map.range(..at[axis]).next_back()?;
        let scaled = |time: f64, key: u64| {
            let mut there = at;
            there[axis] = key;
            time * (sol(at) / sol(there))
        };
        match (below(under), below(above)) {
            (Some(a), Some(b)) => {
                let share = (at[axis] as f64 - *low as f64) / (*high as f64 - *low as f64);
                let blend = |a: f64, b: f64| a + (b - a) * share;
                Some(match self.root_axis == Some(axis) {
                    true => blend(a.sqrt(), b.sqrt()).powi(2),
                    false => blend(a, b),
                })
            }
            (Some(a), None) => Some(scaled(a, *low)),
            (None, Some(b)) => Some(scaled(b, *high)),
            (None, None) => None,
        }
    }

    /// Extrapolates an attention time from the nearest measured points, by their hardware
    /// efficiency.
    fn extrapolate(&self, at: TablePoint, sol: HardwareMinimum<'_>) -> Option<f64> {
        let leaves = self.nearest_points(at);
        let reach = leaves.last()?.0;
        let (mut weights, mut sum) = (0.0, 0.0);
        for (distance, there, time) in leaves.iter().take(MAX_NEAR_POINTS) {
            let weight = ((reach - distance) / (reach * distance + 1e-12)).powi(2);
            weights += weight;
            sum += weight * (sol(*there) / time);
        }
        (weights > 0.0).then(|| sol(at) / (sum / weights))
    }
    /// Returns the measured points of an attention table nearest to `at`, nearest first: one more
    /// than [`MAX_NEAR_POINTS`]. The search along an axis ends at the first entry whose distance on
    /// that axis alone exceeds the distances of all found points.
    fn nearest_points(&self, at: TablePoint) -> Vec<MeasuredPoint> {
        let mut found: Vec<MeasuredPoint> = Vec::with_capacity(MAX_NEAR_POINTS + 2);
        let full = |found: &Vec<MeasuredPoint>, square: f64| {
            found.len() > MAX_NEAR_POINTS && found.last().is_some_and(|last| square.sqrt() > last.0)
        };
        for (x, a, inner) in entries_by_distance(&self.leaves, at[0]) {
            if full(&found, x) {
                break;
            }
            for (y, b, inner) in entries_by_distance(inner, at[1]) {
                if full(&found, x + y) {
                    break;
                }
                for (z, c, time) in entries_by_distance(inner, at[2]) {
                    let square = x + y + z;
                    if full(&found, square) {
                        break;
                    }
                    let leaf = (square.sqrt(), [a, b, c], *time);
                    // Among leaves at equal distance, the first in table order is used.
                    let place = found.partition_point(|other| {
                        other.0.total_cmp(&leaf.0).then(other.1.cmp(&leaf.1)).is_lt()
                    });
                    found.insert(place, leaf);
                    found.truncate(MAX_NEAR_POINTS + 1);
                }
            }
        }
        found
    }
}

/// Measured point: its distance in doublings, its coordinates, and its time in ms.
type MeasuredPoint = (f64, TablePoint, f64);

/// Iterates over the entries of an axis by distance from `at`, nearest first, with the squared
/// distance in doublings.
fn entries_by_distance<V>(
    axis: &BTreeMap<u64, V>,
    at: u64,
) -> impl Iterator<Item = (f64, u64, &V)> {
    let here = (at.max(1) as f64).log2();
    let far = move |(key, value): (&u64, _)| {
        let apart = here - (*key as f64).log2();
        (apart * apart, *key, value)
    };
    let mut below = axis.range(..at).rev().map(far).peekable();
    let mut above = axis.range(at..).map(far).peekable();
    std::iter::from_fn(move || match (below.peek(), above.peek()) {
        (Some(low), Some(high)) if low.0 <= high.0 => below.next(),
        (Some(_), None) => below.next(),
        _ => above.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation: sorts all leaves.
    fn nearest_by_exhaustive_search(
        grid: &AttentionTimeTable,
        at: TablePoint,
    ) -> Vec<MeasuredPoint> {
        let mut leaves = Vec::new();
        for (a, inner) in &grid.leaves {
            for (b, inner) in inner {
                for (c, time) in inner {
                    let there = [*a, *b, *c];
                    let square = |axis: usize| {
                        let apart = (at[axis].max(1) as f64).log2() - (there[axis] as f64).log2();
                        apart * apart
                    };
                    let distance = (square(0) + square(1) + square(2)).sqrt();
                    leaves.push((distance, there, *time));
                }
            }
        }
        leaves.sort_by(|x, y| x.0.total_cmp(&y.0));
        leaves.truncate(MAX_NEAR_POINTS + 1);
        leaves
    }

    #[test]
    fn attention_row_equals_table_lookups() {
        let mut grid = AttentionTimeTable::with_square_root_axis(None);
        for (b, lengths) in [(1, vec![1, 8, 40, 100]), (4, vec![3, 8, 64, 90]), (16, vec![2, 100])]
        {
            for c in lengths {
                grid.add_measured_point([8, b, c], (b * c) as f64 + (c as f64).sqrt());
            }
        }
        let beyond = |_: TablePoint| -> f64 { panic!("inside nothing is told from the hardware") };
        for b in [1, 2, 3, 4, 9, 16] {
            let row = grid.curve_along_last_axis(8, b);
            for c in (1..=100).filter(|c| row.covers_axis_value(*c) && row.covers_axis_value(c + 2))
            {
                let by_hand: f64 = [c, c, c + 2]
                    .iter()
                    .map(|c| grid.time_or_minimum_ms([8, b, *c], &beyond))
                    .sum();
                let sum = row.sum_of_times_ms(&[c, c, c + 2]).unwrap_or(f64::NAN);
                assert!((sum / by_hand - 1.0).abs() < 1e-14, "{b} {c}: {sum}, {by_hand}");
            }
            assert_eq!(row.sum_of_times_ms(&[101]), None);
            assert_eq!(row.sum_of_times_ms(&[0]), None);
        }
        assert_eq!(
            (grid.curve_along_last_axis(8, 2).len(), grid.curve_along_last_axis(8, 1).len()),
            (5, 4)
        );
        assert_eq!(
            (grid.curve_along_last_axis(8, 17).len(), grid.curve_along_last_axis(4, 1).len()),
            (0, 0)
        );
    }

    #[test]
    fn nearest_points_equal_exhaustive_search() {
        let mut grid = AttentionTimeTable::with_square_root_axis(None);
        for (i, a) in [1, 2, 4, 8, 12, 32].into_iter().enumerate() {
            for b in [1, 2, 4, 16, 100] {
                for c in [1, 3, 64, 128, 4096] {
                    // Leave out some leaves.
                    if (a + b + c) % 3 != 0 {
                        grid.add_measured_point([a, b, c], i as f64 + b as f64 / c as f64);
                    }
                }
            }
        }
        for a in [1, 3, 4, 40] {
            for b in [0, 1, 5, 1000] {
                for c in [1, 70, 128, 9000] {
                    let at = [a, b, c];
                    assert_eq!(
                        grid.nearest_points(at),
                        nearest_by_exhaustive_search(&grid, at),
                        "{at:?}"
                    );
                }
            }
        }
    }
}
