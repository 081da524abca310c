//! What somebody may have meant who wrote a name that there is not.

/// "; there is …: did you mean …?" where one of the keys that are there is near to the one that is missing.
pub(crate) fn instead_of<'a>(missing: &str, there: impl IntoIterator<Item = &'a String>) -> String {
    let mut there = there.into_iter();
    let odd = there.find(|key| !did_you_mean(key, [missing]).is_empty());
    odd.map_or_else(String::new, |odd| {
        format!("; there is {odd:?}: did you mean {missing:?}?")
    })
}

/// "; did you mean …?" where one of these is near, and nothing else.
pub(crate) fn did_you_mean<S: AsRef<str>>(
    wrong: &str,
    known: impl IntoIterator<Item = S>,
) -> String {
    let lower = wrong.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&lower, &name.to_lowercase());
    let nearest = known
        .into_iter()
        .map(|name| (distance(name.as_ref()), name))
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        // Of short names fewer letters may be wrong.
        Some((distance, name)) if distance <= (wrong.chars().count() / 3).clamp(1, 3) => {
            format!("; did you mean {:?}?", name.as_ref())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, instead_of};

    #[test]
    fn a_name_that_is_near_is_told_and_one_that_is_not_is_none() {
        let known = ["slots", "segments", "Blur"];
        assert_eq!(did_you_mean("slot", known), "; did you mean \"slots\"?");
        assert_eq!(did_you_mean("Blr", known), "; did you mean \"Blur\"?");
        assert_eq!(did_you_mean("blur", known), "; did you mean \"Blur\"?");
        assert_eq!(did_you_mean("colour", known), "");
        assert_eq!(did_you_mean("x", [""; 0]), "");
        let there = ["size".to_owned(), "stag".to_owned()];
        assert_eq!(
            instead_of("stage", &there),
            "; there is \"stag\": did you mean \"stage\"?"
        );
        assert_eq!(instead_of("iterator", &there), "");
    }
}
