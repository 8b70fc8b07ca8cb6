//! A model that learns to rank rows from what was measured, and proposes the row that it ranks first.
//!
//! Gradient-boosted regression trees on the pairwise logistic loss (RankNet's, Burges et al. 2005): each tree is fitted to the
//! force with which pairs in the wrong order pull a row up or down. Only the order of scores matters, so the model serves times
//! and counters alike, and a candidate that failed is simply worse than all that did not.

use super::{Strategy, tried};
use crate::search::space::Space;
use crate::search::{Evaluated, Outcome, Rng};
use kernels_gpu::row::Row;
use rand::Rng as _;

/// Candidates before the model is asked.
const WARM_UP: usize = 6;
/// How often a row is drawn by chance, so that the model learns of what it does not look at.
const EXPLORATION: f64 = 0.15;
const TREES: usize = 40;
const LEARNING_RATE: f64 = 0.3;
const DEPTH: u32 = 2;
/// Candidates that the model learns from at most, the latest: each tree looks at all their pairs.
const LEARNT_FROM: usize = 256;

/// Learns anew from the history at each step; where it knows too little it refines the best row.
pub struct Ranker {
    /// The rows.
    pub space: Space,
}

impl Strategy for Ranker {
    fn propose(&mut self, history: &[Evaluated], rng: &mut Rng) -> Option<Row> {
        let tried = tried(history);
        let explores = rng.random_bool(EXPLORATION);
        let examples = examples(&self.space, history);
        if examples.len() < WARM_UP {
            return self.space.unlike(&tried, rng);
        }
        if explores {
            return self.space.random(&tried, rng);
        }
        let model = Model::learn(&examples);
        let untried = self.space.rows().iter().filter(|row| !tried.contains(row));
        // The first of equal ones, as rows have an order.
        let ranked = untried.map(|row| (model.predict(&self.space.features(row)), row));
        ranked.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| *row)
    }
}

/// A row as the model sees it, and its score.
struct Example {
    features: Vec<f64>,
    score: f64,
}

/// The candidates with scores, and those that were refused with the worst of scores.
fn examples(space: &Space, history: &[Evaluated]) -> Vec<Example> {
    let latest = &history[history.len().saturating_sub(LEARNT_FROM)..];
    let score = |candidate: &Evaluated| match candidate.outcome {
        Outcome::Refused { .. } => Some(f64::INFINITY),
        _ => candidate.score(),
    };
    let example = |candidate: &Evaluated| {
        Some(Example { features: space.features(&candidate.row), score: score(candidate)? })
    };
    latest.iter().filter_map(example).collect()
}

/// A sum of trees. Lower is predicted to be better.
struct Model(Vec<Tree>);

enum Tree {
    Leaf(f64),
    Split { feature: usize, at: f64, below: Box<Tree>, above: Box<Tree> },
}

impl Tree {
    fn predict(&self, features: &[f64]) -> f64 {
        match self {
            Tree::Leaf(value) => *value,
            Tree::Split { feature, at, below, above } => {
                if features[*feature] <= *at {
                    below.predict(features)
                } else {
                    above.predict(features)
                }
            }
        }
    }
}

impl Model {
    fn learn(examples: &[Example]) -> Self {
        let mut model = Model(Vec::new());
        let mut predicted = vec![0.0; examples.len()];
        let all: Vec<usize> = (0..examples.len()).collect();
        for _ in 0..TREES {
            let forces = forces(examples, &predicted);
            let tree = grow(examples, &forces, &all, DEPTH);
            for (predicted, example) in predicted.iter_mut().zip(examples) {
                *predicted += tree.predict(&example.features);
            }
            model.0.push(tree);
        }
        model
    }

    fn predict(&self, features: &[f64]) -> f64 {
        self.0.iter().map(|tree| tree.predict(features)).sum()
    }
}

/// Gradient and curvature of the pairwise logistic loss, by example.
fn forces(examples: &[Example], predicted: &[f64]) -> Vec<[f64; 2]> {
    let mut forces = vec![[0.0, 0.0]; examples.len()];
    for better in 0..examples.len() {
        for worse in 0..examples.len() {
            if examples[better].score < examples[worse].score {
                // How wrong the model is about the pair: 1 if it is sure of the contrary.
                let wrong = 1.0 / (1.0 + (predicted[worse] - predicted[better]).exp());
                let curvature = wrong * (1.0 - wrong);
                forces[better] = [forces[better][0] - wrong, forces[better][1] + curvature];
                forces[worse] = [forces[worse][0] + wrong, forces[worse][1] + curvature];
            }
        }
    }
    forces
}

/// A Newton step for a leaf, kept small where few pairs speak.
fn leaf(sum: [f64; 2]) -> f64 {
    LEARNING_RATE * sum[0] / (sum[1] + 1.0)
}

fn gain(sum: [f64; 2]) -> f64 {
    sum[0] * sum[0] / (sum[1] + 1.0)
}

fn total(forces: &[[f64; 2]], members: &[usize]) -> [f64; 2] {
    members.iter().fold([0.0, 0.0], |sum, &i| [sum[0] + forces[i][0], sum[1] + forces[i][1]])
}

fn grow(examples: &[Example], forces: &[[f64; 2]], members: &[usize], depth: u32) -> Tree {
    let sum = total(forces, members);
    let split = if depth == 0 { None } else { best_split(examples, forces, members, sum) };
    let Some((feature, at)) = split else { return Tree::Leaf(leaf(sum)) };
    let (below, above): (Vec<usize>, Vec<usize>) =
        members.iter().copied().partition(|&i| examples[i].features[feature] <= at);
    Tree::Split {
        feature,
        at,
        below: Box::new(grow(examples, forces, &below, depth - 1)),
        above: Box::new(grow(examples, forces, &above, depth - 1)),
    }
}

/// The feature and the value that part the members best; the first of equal ones.
fn best_split(
    examples: &[Example],
    forces: &[[f64; 2]],
    members: &[usize],
    sum: [f64; 2],
) -> Option<(usize, f64)> {
    const LEAST_GAIN: f64 = 1e-9;
    let mut best = None;
    let mut best_gain = gain(sum) + LEAST_GAIN;
    let features = members.first().map_or(0, |&first| examples[first].features.len());
    for feature in 0..features {
        let mut ordered = members.to_vec();
        ordered.sort_by(|&a, &b| examples[a].features[feature].total_cmp(&examples[b].features[feature]));
        let mut below = [0.0, 0.0];
        for pair in ordered.windows(2) {
            below = [below[0] + forces[pair[0]][0], below[1] + forces[pair[0]][1]];
            let (at, next) = (examples[pair[0]].features[feature], examples[pair[1]].features[feature]);
            if at == next {
                continue;
            }
            let parted = gain(below) + gain([sum[0] - below[0], sum[1] - below[1]]);
            if parted > best_gain {
                (best, best_gain) = (Some((feature, (at + next) / 2.0)), parted);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(score: impl Fn(f64, f64) -> f64) -> Vec<Example> {
        let points = (0..6).flat_map(|x| (0..6).map(move |y| (f64::from(x), f64::from(y))));
        points.map(|(x, y)| Example { features: vec![x, y], score: score(x, y) }).collect()
    }

    /// The share of pairs that the model puts into the order of their scores.
    fn agreement(examples: &[Example]) -> f64 {
        let model = Model::learn(examples);
        let (mut pairs, mut right) = (0, 0);
        for a in examples {
            for b in examples.iter().filter(|b| a.score < b.score) {
                pairs += 1;
                right += u32::from(model.predict(&a.features) < model.predict(&b.features));
            }
        }
        f64::from(right) / f64::from(pairs)
    }

    #[test]
    fn it_learns_sums_interactions_and_what_failed() {
        assert!(agreement(&examples(|x, y| x + 2.0 * y)) > 0.95);
        assert!(agreement(&examples(|x, y| (x - 1.0) * (y - 1.0))) > 0.85);
        assert!(agreement(&examples(|x, y| if x > 3.0 { f64::INFINITY } else { y })) > 0.95);
    }

    #[test]
    fn only_the_order_of_scores_counts() {
        let (plain, stretched) = (examples(|x, y| x + 2.0 * y), examples(|x, y| (x + 2.0 * y).exp()));
        let at = [1.0, 4.0];
        assert_eq!(Model::learn(&plain).predict(&at), Model::learn(&stretched).predict(&at));
    }

    #[test]
    fn equal_scores_teach_nothing() {
        let model = Model::learn(&examples(|_, _| 1.0));
        assert_eq!(model.predict(&[0.0, 0.0]), 0.0);
    }
}
