//! Flattens the schema nodes of a goal into facets without references and choices.

use super::plan::ValuePlan;
use super::sampler::{SampleFailure, ValueContext, ValueSampler};
use crate::schema::{JsonTypes, SchemaNodeId};

/// Maximum number of schema nodes to which the constraints on one value are flattened, for schemas
/// that include each other.
const MAX_PLAN_NODES: usize = 2_000;

#[derive(Debug, Clone, Copy)]
enum SchemaBranchChoice {
    Any(SchemaNodeId),
    One(SchemaNodeId),
    When(SchemaNodeId),
}

impl ValueSampler<'_> {
    /// Flattens the schema nodes in `goal`, which all constrain one value, with random choices of
    /// `anyOf`, `oneOf` and `if` branches.
    pub(super) fn plan_sampled_value(
        &mut self,
        goal: &[SchemaNodeId],
        context: ValueContext,
        attempt: u32,
    ) -> Result<ValuePlan, SampleFailure> {
        let mut plan = ValuePlan {
            meant: JsonTypes::NO_TYPES,
            parts: JsonTypes::NO_TYPES,
            ..ValuePlan::default()
        };
        self.extend_value_plan(&mut plan, goal, context, attempt)?;
        Ok(plan)
    }

    pub(super) fn extend_value_plan(
        &mut self,
        plan: &mut ValuePlan,
        goal: &[SchemaNodeId],
        context: ValueContext,
        attempt: u32,
    ) -> Result<(), SampleFailure> {
        let mut certain: Vec<SchemaNodeId> = goal.to_vec();
        let mut choices: Vec<SchemaBranchChoice> = Vec::new();
        loop {
            while let Some(id) = certain.pop() {
                self.add_schema_node(plan, id, &mut certain, &mut choices)?;
            }
            // An `enum` needs no further choices, nor does a conflict.
            if plan.impossible.is_some() || (plan.allowed.is_some() && plan.choices == 0) {
                return Ok(());
            }
            let Some(choice) = choices.pop() else {
                return Ok(());
            };
            self.resolve_branch_choice(plan, choice, context, attempt, &mut certain)?;
        }
    }

    fn add_schema_node(
        &mut self,
        plan: &mut ValuePlan,
        id: SchemaNodeId,
        certain: &mut Vec<SchemaNodeId>,
        choices: &mut Vec<SchemaBranchChoice>,
    ) -> Result<(), SampleFailure> {
        if plan.facets.contains(&id) {
            return Ok(());
        }
        self.validator.spend_validation_fuel(1 + plan.facets.len() as u32 / 8)?;
        if plan.facets.len() >= MAX_PLAN_NODES {
            plan.impossible = Some((id, "too many schemas apply to one value"));
            return Ok(());
        }
        let schema = self.schema;
        let node = schema.schema_node(id);
        plan.facets.push(id);
        plan.types = plan.types.intersection(node.types).intersection(node.possible);
        if node.never {
            plan.impossible = Some((id, "schema is false"));
        } else if node.allowed.as_ref().is_some_and(Vec::is_empty) {
            plan.impossible = Some((id, "enum is empty"));
        } else if plan.types == JsonTypes::NO_TYPES {
            plan.impossible = Some((id, "incompatible types"));
        }
        plan.is_typed |= node.typed;
        if let Some(values) = &node.allowed {
            let shorter = plan.allowed.is_none_or(|other| {
                let known = schema.schema_node(other).allowed.as_ref();
                known.is_some_and(|known| known.len() > values.len())
            });
            if shorter {
                plan.allowed = Some(id);
            }
        }
        for (present, types) in [
            (node.number.is_some(), JsonTypes::NUMBER),
            (node.string.is_some(), JsonTypes::STRING),
            (node.array.is_some(), JsonTypes::ARRAY),
            (node.object.is_some(), JsonTypes::OBJECT),
        ] {
            if present {
                plan.meant = plan.meant.union(types);
            }
        }
        plan.is_hard |= node
            .array
            .as_ref()
            .is_some_and(|rules| rules.contains.is_some() || rules.unevaluated.is_some())
            || node.object.as_ref().is_some_and(|rules| rules.unevaluated.is_some());
        let Some(applicators) = &node.applicators else {
            return Ok(());
        };
        // Pushed in reverse, so that parts are read in document order.
        certain.extend(applicators.all.iter().rev());
        certain.extend(applicators.refs.iter().rev());
        if !applicators.any.is_empty() {
            choices.push(SchemaBranchChoice::Any(id));
        }
        if !applicators.one.is_empty() {
            choices.push(SchemaBranchChoice::One(id));
        }
        if applicators.when.is_some() {
            choices.push(SchemaBranchChoice::When(id));
        }
        if let Some(not) = applicators.not {
            plan.is_hard = true;
            self.plan_schema_violation(plan, not, certain);
        }
        Ok(())
    }

    fn resolve_branch_choice(
        &mut self,
        plan: &mut ValuePlan,
        choice: SchemaBranchChoice,
        context: ValueContext,
        attempt: u32,
        certain: &mut Vec<SchemaNodeId>,
    ) -> Result<(), SampleFailure> {
        let schema = self.schema;
        let id = match choice {
            SchemaBranchChoice::Any(id)
            | SchemaBranchChoice::One(id)
            | SchemaBranchChoice::When(id) => id,
        };
        let Some(applicators) = &schema.schema_node(id).applicators else {
            return Ok(());
        };
        match choice {
            SchemaBranchChoice::Any(_) => {
                plan.choices += applicators.any.len() as u32 - 1;
                match self.choose_branch(&applicators.any, plan, context)? {
                    Some(branch) => certain.push(branch),
                    None => plan.impossible = Some((id, "no branch of anyOf is possible here")),
                }
            }
            SchemaBranchChoice::One(_) => {
                plan.choices += applicators.one.len() as u32 - 1;
                plan.is_hard = true;
                match self.choose_branch(&applicators.one, plan, context)? {
                    Some(branch) => {
                        certain.push(branch);
                        // The other branches reject most values anyway.
                        for &other in applicators.one.iter().filter(|_| attempt > 0) {
                            if other != branch && self.random_chance(70) {
                                self.plan_schema_violation(plan, other, certain);
                            }
                        }
                    }
                    None => plan.impossible = Some((id, "no branch of oneOf is possible here")),
                }
            }
            SchemaBranchChoice::When(_) => {
                let Some(when) = applicators.when else {
                    return Ok(());
                };
                plan.choices += 1;
                plan.is_hard = true;
                let never =
                    |id: Option<SchemaNodeId>| id.is_some_and(|id| schema.schema_node(id).never);
                let then = if never(when.otherwise) {
                    true
                } else {
                    !never(when.then)
                        && (attempt + u32::from(self.random_chance(50))).is_multiple_of(2)
                };
                if then {
                    certain.push(when.test);
                    certain.extend(when.then);
                } else {
                    certain.extend(when.otherwise);
                    self.plan_schema_violation(plan, when.test, certain);
                }
            }
        }
        Ok(())
    }

    /// Chooses a random branch of a combinator, among those that the types known so far allow.
    fn choose_branch(
        &mut self,
        branches: &[SchemaNodeId],
        plan: &ValuePlan,
        context: ValueContext,
    ) -> Result<Option<SchemaNodeId>, SampleFailure> {
        self.validator.spend_validation_fuel(branches.len() as u32 / 8)?;
        let schema = self.schema;
        let fits = |types: JsonTypes| {
            branches
                .iter()
                .copied()
                .filter(|&id| schema.schema_node(id).possible.intersects(types))
                .collect::<Vec<_>>()
        };
        let wanted = plan.types.intersection(context.want);
        let mut open = if wanted == JsonTypes::NO_TYPES { Vec::new() } else { fits(wanted) };
        if open.is_empty() {
            open = fits(plan.types);
        }
        if self.requires_minimal_value(context) && self.random_chance(80) {
            // The lowest branch ends a recursion.
            if let Some(least) = open.iter().map(|&id| schema.schema_node(id).height).min() {
                open.retain(|&id| schema.schema_node(id).height == least);
            }
        }
        let measured =
            context.semantic_type.is_some_and(|semantic_type| semantic_type.range.is_some());
        let number =
            |id: SchemaNodeId| schema.schema_node(id).possible.intersects(JsonTypes::NUMBER);
        if measured && open.iter().any(|&id| number(id)) && self.random_chance(75) {
            // A field with a numeric meaning prefers numbers over strings.
            open.retain(|&id| number(id));
        }
        let null = |id: SchemaNodeId| schema.schema_node(id).possible == JsonTypes::NULL;
        if open.iter().any(|&id| !null(id)) && self.random_chance(88) {
            open.retain(|&id| !null(id));
        }
        let index = self.random_below(open.len());
        Ok(open.get(index).copied())
    }
}
