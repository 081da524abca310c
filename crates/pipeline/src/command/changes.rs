//! What the command line changes in a configuration, and which of these changes an error is due to: what is wrong with a
//! value is to be mended where it was written, which is not the file then.

use crate::config::Config;
use crate::error::{Error, Result};

/// One change.
struct Change {
    /// As it was written.
    told: String,
    key: String,
    value: String,
}

/// See the module; in the order in which they are made.
pub(super) struct Changes(Vec<Change>);

impl Changes {
    /// Those of options with a name of their own, each with the key that it is for, and then those of `--set`.
    ///
    /// # Errors
    /// `Invalid` for a `--set` that is no KEY=VALUE.
    pub(super) fn of<const N: usize>(
        named: [(&str, &str, Option<String>); N],
        set: &[String],
    ) -> Result<Self> {
        let named = named.into_iter().filter_map(|(option, key, value)| {
            let value = value?;
            Some(Ok(Change {
                told: format!("{option} {value}"),
                key: key.to_owned(),
                value,
            }))
        });
        let set = set.iter().map(|change| {
            let (key, value) = change
                .split_once('=')
                .ok_or_else(|| Error::invalid(format!("--set {change}: KEY=VALUE was expected")))?;
            Ok(Change {
                told: format!("--set {change}"),
                key: key.to_owned(),
                value: value.to_owned(),
            })
        });
        named.chain(set).collect::<Result<_>>().map(Self)
    }

    /// Makes all of them.
    ///
    /// # Errors
    /// `Invalid` for one that leads nowhere.
    pub(super) fn make(&self, config: &Config) -> Result<Config> {
        self.make_some(config, 0..self.0.len())
    }

    fn make_some(&self, config: &Config, which: impl IntoIterator<Item = usize>) -> Result<Config> {
        let mut config = config.clone();
        for Change { told, key, value } in which.into_iter().map(|index| &self.0[index]) {
            config = config.set(key, value).map_err(|error| {
                let error = error.to_string();
                let error = error.strip_prefix(&format!("{key}: ")).unwrap_or(&error);
                Error::invalid(format!("{told}: {error}"))
            })?;
        }
        Ok(config)
    }

    /// Of a configuration that all of them were made in, and of which `look` says this error: the changes that it is due to,
    /// as they were written; nothing where it is the file's own.
    pub(super) fn blamed(
        &self,
        config: &Config,
        error: &Error,
        look: impl Fn(&Config) -> Result<()>,
    ) -> Option<String> {
        let told = |which: &[usize]| -> Option<String> {
            let made = self.make_some(config, which.iter().copied());
            made.and_then(|config| look(&config))
                .err()
                .map(|error| error.to_string())
        };
        let error = Some(error.to_string());
        // Those without which it would not be told: each is left out, and left out for good where that changes nothing.
        let mut needed: Vec<usize> = (0..self.0.len()).collect();
        for index in 0..self.0.len() {
            let without = without(&needed, index);
            if told(&without) == error {
                needed = without;
            }
        }
        // Others may only make it possible to get as far as this error; without the wrong ones there is none.
        let mends = |index: &usize| told(&without(&needed, *index)).is_none();
        let wrong: Vec<usize> = needed.iter().copied().filter(mends).collect();
        let blamed = if wrong.is_empty() { &needed } else { &wrong };
        let blamed: Vec<&str> = blamed.iter().map(|&index| &*self.0[index].told).collect();
        (!blamed.is_empty()).then(|| blamed.join(", "))
    }
}

fn without(some: &[usize], index: usize) -> Vec<usize> {
    some.iter()
        .copied()
        .filter(|&other| other != index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn registry() -> Registry {
        Registry::new().iterator("numbers", |params| match params["end"].as_u64() {
            Some(end) => Ok(0..end),
            None => Err("end is to be a number".into()),
        })
    }

    /// What is blamed for the error of a configuration with these changes.
    fn blamed(text: &str, set: &[&str]) -> (String, Option<String>) {
        let config = Config::from_toml(text).unwrap();
        let look = |config: &Config| config.pipeline(registry)?.check();
        let set: Vec<String> = set.iter().map(|&change| change.to_owned()).collect();
        let named = [("--count", "client.count", Some("3".to_owned()))];
        let changes = Changes::of(named, &set).unwrap();
        let error = look(&changes.make(&config).unwrap()).unwrap_err();
        let blamed = changes.blamed(&config, &error, look);
        (error.to_string(), blamed)
    }

    const TEXT: &str = r#"
        iterator = "numbers"
        iterator_params = { end = 3 }
        pipeline = [{ stage = "Aggregator", name = "end" }]
    "#;

    #[test]
    fn the_changes_that_an_error_is_due_to_are_named_and_no_others() {
        let no_end = TEXT.replace("end = 3", "");
        for (text, set, told, wrong) in [
            (
                TEXT,
                &["end.devices=[-1]", "end.limit_ms=soon"][..],
                "limit_ms: invalid type",
                Some("--set end.limit_ms=soon"),
            ),
            // Neither is wrong without the other.
            (
                TEXT,
                &["end.devices=[-1]", "client.seed=1", "end.replicas=2"],
                "replicas: devices are named as well",
                Some("--set end.devices=[-1], --set end.replicas=2"),
            ),
            // The same twice.
            (
                TEXT,
                &["client.count=no", "client.count=no"],
                "client, count",
                Some("--set client.count=no"),
            ),
            // One that mends the file is not to blame for another.
            (
                &no_end,
                &["iterator_params.end=9", "end.queue_size=0"],
                "queue_size: 0",
                Some("--set end.queue_size=0"),
            ),
            // The file is wrong whatever is changed.
            (
                &no_end,
                &["end.queue_size=4"],
                "end is to be a number",
                None,
            ),
        ] {
            let (error, blamed) = blamed(text, set);
            assert!(error.contains(told), "{set:?}: {error}");
            assert_eq!(blamed.as_deref(), wrong, "{set:?}: {error}");
        }
    }

    #[test]
    fn a_change_that_leads_nowhere_is_told_as_it_was_written() {
        let config = Config::from_toml(TEXT).unwrap();
        let set = ["pipeline.7.slots=3".to_owned()];
        let changes = Changes::of([], &set).unwrap();
        let error = changes.make(&config).unwrap_err().to_string();
        assert!(
            error.starts_with("--set pipeline.7.slots=3: there is no \"7\" to set"),
            "{error}"
        );
    }
}
