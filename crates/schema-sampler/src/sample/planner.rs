//! From a goal to its facets.

use super::plan::Plan;
use super::sampler::{Fail, Place, Sampler};
use crate::schema::{NodeId, Types};

/// Facets of one goal, at most: bounds documents whose parts include each other.
const MAX_FACETS: usize = 2_000;

/// A choice that waits until everything certain is known.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Any(NodeId),
    One(NodeId),
    When(NodeId),
}

impl Sampler<'_> {
    /// Flattens `goal`, choosing branches at random.
    pub(super) fn plan(
        &mut self,
        goal: &[NodeId],
        place: Place,
        attempt: u32,
    ) -> Result<Plan, Fail> {
        let mut plan = Plan {
            meant: Types::NONE,
            parts: Types::NONE,
            ..Plan::default()
        };
        self.extend(&mut plan, goal, place, attempt)?;
        Ok(plan)
    }

    /// Adds `goal` to a plan.
    pub(super) fn extend(
        &mut self,
        plan: &mut Plan,
        goal: &[NodeId],
        place: Place,
        attempt: u32,
    ) -> Result<(), Fail> {
        let mut certain: Vec<NodeId> = goal.to_vec();
        let mut choices: Vec<Choice> = Vec::new();
        loop {
            while let Some(id) = certain.pop() {
                self.facet(plan, id, &mut certain, &mut choices)?;
            }
            // An `enum` decides alone, and a dead end needs no choices.
            if plan.dead.is_some() || (plan.allowed.is_some() && plan.choices == 0) {
                return Ok(());
            }
            let Some(choice) = choices.pop() else {
                return Ok(());
            };
            self.choose(plan, choice, place, attempt, &mut certain)?;
        }
    }

    fn facet(
        &mut self,
        plan: &mut Plan,
        id: NodeId,
        certain: &mut Vec<NodeId>,
        choices: &mut Vec<Choice>,
    ) -> Result<(), Fail> {
        if plan.facets.contains(&id) {
            return Ok(());
        }
        self.judge.spend(1 + plan.facets.len() as u32 / 8)?;
        if plan.facets.len() >= MAX_FACETS {
            plan.dead = Some((id, "too many schemas apply to one value"));
            return Ok(());
        }
        let schema = self.schema;
        let node = schema.node(id);
        plan.facets.push(id);
        plan.types = plan.types.and(node.types).and(node.possible);
        if node.never {
            plan.dead = Some((id, "schema is false"));
        } else if node.allowed.as_ref().is_some_and(Vec::is_empty) {
            plan.dead = Some((id, "enum is empty"));
        } else if plan.types == Types::NONE {
            plan.dead = Some((id, "incompatible types"));
        }
        plan.is_typed |= node.typed;
        if let Some(values) = &node.allowed {
            let shorter = plan.allowed.is_none_or(|other| {
                let known = schema.node(other).allowed.as_ref();
                known.is_some_and(|known| known.len() > values.len())
            });
            if shorter {
                plan.allowed = Some(id);
            }
        }
        for (present, types) in [
            (node.number.is_some(), Types::NUMBER),
            (node.string.is_some(), Types::STRING),
            (node.array.is_some(), Types::ARRAY),
            (node.object.is_some(), Types::OBJECT),
        ] {
            if present {
                plan.meant = plan.meant.or(types);
            }
        }
        plan.is_hard |= node
            .array
            .as_ref()
            .is_some_and(|rules| rules.contains.is_some() || rules.unevaluated.is_some())
            || node
                .object
                .as_ref()
                .is_some_and(|rules| rules.unevaluated.is_some());
        let Some(logic) = &node.logic else {
            return Ok(());
        };
        // Pushed in reverse, so that parts are read in the order of the document.
        certain.extend(logic.all.iter().rev());
        certain.extend(logic.refs.iter().rev());
        if !logic.any.is_empty() {
            choices.push(Choice::Any(id));
        }
        if !logic.one.is_empty() {
            choices.push(Choice::One(id));
        }
        if logic.when.is_some() {
            choices.push(Choice::When(id));
        }
        if let Some(not) = logic.not {
            plan.is_hard = true;
            self.violate(plan, not, certain);
        }
        Ok(())
    }

    fn choose(
        &mut self,
        plan: &mut Plan,
        choice: Choice,
        place: Place,
        attempt: u32,
        certain: &mut Vec<NodeId>,
    ) -> Result<(), Fail> {
        let schema = self.schema;
        let id = match choice {
            Choice::Any(id) | Choice::One(id) | Choice::When(id) => id,
        };
        let Some(logic) = &schema.node(id).logic else {
            return Ok(());
        };
        match choice {
            Choice::Any(_) => {
                plan.choices += logic.any.len() as u32 - 1;
                match self.branch(&logic.any, plan, place)? {
                    Some(branch) => certain.push(branch),
                    None => plan.dead = Some((id, "no branch of anyOf is possible here")),
                }
            }
            Choice::One(_) => {
                plan.choices += logic.one.len() as u32 - 1;
                plan.is_hard = true;
                match self.branch(&logic.one, plan, place)? {
                    Some(branch) => {
                        certain.push(branch);
                        // The other branches refuse most values by themselves.
                        for &other in logic.one.iter().filter(|_| attempt > 0) {
                            if other != branch && self.chance(70) {
                                self.violate(plan, other, certain);
                            }
                        }
                    }
                    None => plan.dead = Some((id, "no branch of oneOf is possible here")),
                }
            }
            Choice::When(_) => {
                let Some(when) = logic.when else {
                    return Ok(());
                };
                plan.choices += 1;
                plan.is_hard = true;
                let never = |id: Option<NodeId>| id.is_some_and(|id| schema.node(id).never);
                let then = if never(when.otherwise) {
                    true
                } else {
                    !never(when.then) && (attempt + u32::from(self.chance(50))).is_multiple_of(2)
                };
                if then {
                    certain.push(when.test);
                    certain.extend(when.then);
                } else {
                    certain.extend(when.otherwise);
                    self.violate(plan, when.test, certain);
                }
            }
        }
        Ok(())
    }

    /// One of `branches` that the types known so far leave possible.
    fn branch(
        &mut self,
        branches: &[NodeId],
        plan: &Plan,
        place: Place,
    ) -> Result<Option<NodeId>, Fail> {
        self.judge.spend(branches.len() as u32 / 8)?;
        let schema = self.schema;
        let fits = |types: Types| {
            branches
                .iter()
                .copied()
                .filter(|&id| schema.node(id).possible.meets(types))
                .collect::<Vec<_>>()
        };
        let wanted = plan.types.and(place.want);
        let mut open = if wanted == Types::NONE {
            Vec::new()
        } else {
            fits(wanted)
        };
        if open.is_empty() {
            open = fits(plan.types);
        }
        if self.is_lean(place) && self.chance(80) {
            // The way out of a recursion.
            if let Some(least) = open.iter().map(|&id| schema.node(id).height).min() {
                open.retain(|&id| schema.node(id).height == least);
            }
        }
        let measured = place.concept.is_some_and(|concept| concept.range.is_some());
        let number = |id: NodeId| schema.node(id).possible.meets(Types::NUMBER);
        if measured && open.iter().any(|&id| number(id)) && self.chance(75) {
            // A price that may be a text as well is a number.
            open.retain(|&id| number(id));
        }
        let null = |id: NodeId| schema.node(id).possible == Types::NULL;
        if open.iter().any(|&id| !null(id)) && self.chance(88) {
            open.retain(|&id| !null(id));
        }
        let index = self.below(open.len());
        Ok(open.get(index).copied())
    }
}
