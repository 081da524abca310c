//! What somebody may have meant who wrote a name that there is not.

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
    use super::did_you_mean;

    #[test]
    fn a_name_that_is_near_is_told_and_one_that_is_not_is_none() {
        let known = ["slots", "segments", "Blur"];
        assert_eq!(did_you_mean("slot", known), "; did you mean \"slots\"?");
        assert_eq!(did_you_mean("Blr", known), "; did you mean \"Blur\"?");
        assert_eq!(did_you_mean("blur", known), "; did you mean \"Blur\"?");
        assert_eq!(did_you_mean("colour", known), "");
        assert_eq!(did_you_mean("x", [""; 0]), "");
    }
}
