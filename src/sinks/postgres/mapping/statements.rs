//! The statements that write encoded rows. Nothing of a record is ever part of one, and every name is quoted.

use super::ColumnPlan;
use crate::model::sink_spec::{PostgresSinkSpec, quoted};

pub(super) struct Statements {
    pub(super) copy: String,
    pub(super) upsert: String,
    pub(super) delete: String,
}

impl Statements {
    pub(super) fn new(spec: &PostgresSinkSpec, plans: &[ColumnPlan]) -> Self {
        let names = list(plans.iter().map(|plan| quoted(&plan.name)));
        let table = spec.table.quoted();
        Self {
            copy: format!("COPY {table} ({names}) FROM STDIN WITH (FORMAT text, ENCODING 'UTF8')"),
            upsert: upsert(spec, plans, &names),
            delete: delete(spec, plans),
        }
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// A column's values under a name of our own, read by its type's input function. The type's length is not part of the
/// cast: an explicit cast to `varchar(3)` would cut without a word, where the assignment to the column refuses.
fn read(index: usize, plan: &ColumnPlan) -> String {
    format!("u.c{index}::{} AS k{index}", plan.cast)
}

/// The last row of each key, as `latest` with columns `k1`, `k2`, ... and `gone`.
fn latest(plans: &[ColumnPlan], wanted: impl Fn(&ColumnPlan) -> bool) -> String {
    let parameters = list((1..=plans.len()).map(|index| format!("${index}::text[]")));
    let raw_names = list((1..=plans.len()).map(|index| format!("c{index}")));
    let numbered = || (1..).zip(plans);
    let values = list(
        numbered()
            .filter(|(_, plan)| wanted(plan))
            .map(|(index, plan)| read(index, plan)),
    );
    let keys = list(
        numbered()
            .filter(|(_, plan)| plan.is_key)
            .map(|(index, _)| format!("k{index}")),
    );
    let gone = plans.len() + 1;
    format!(
        "SELECT DISTINCT ON ({keys}) * FROM (SELECT {values}, u.gone, u.place \
         FROM unnest({parameters}, ${gone}::bool[]) WITH ORDINALITY AS u({raw_names}, gone, place)) AS typed \
         ORDER BY {keys}, place DESC"
    )
}

fn upsert(spec: &PostgresSinkSpec, plans: &[ColumnPlan], names: &str) -> String {
    let values = list((1..=plans.len()).map(|index| format!("latest.k{index}")));
    let key = list(spec.write.key.iter().map(|name| quoted(name)));
    let replaced = list(plans.iter().filter(|plan| !plan.is_key).map(|plan| {
        let name = quoted(&plan.name);
        format!("{name} = EXCLUDED.{name}")
    }));
    let action = if replaced.is_empty() {
        "DO NOTHING".to_owned()
    } else {
        format!("DO UPDATE SET {replaced}")
    };
    format!(
        "INSERT INTO {} ({names}) SELECT {values} FROM ({}) AS latest WHERE NOT latest.gone \
         ON CONFLICT ({key}) {action}",
        spec.table.quoted(),
        latest(plans, |_| true),
    )
}

fn delete(spec: &PostgresSinkSpec, plans: &[ColumnPlan]) -> String {
    let matches: Vec<String> = (1..)
        .zip(plans)
        .filter(|(_, plan)| plan.is_key)
        .map(|(index, plan): (usize, _)| format!("t.{} = latest.k{index}", quoted(&plan.name)))
        .collect();
    format!(
        "DELETE FROM {} AS t USING ({}) AS latest WHERE latest.gone AND {}",
        spec.table.quoted(),
        latest(plans, |plan| plan.is_key),
        matches.join(" AND "),
    )
}
