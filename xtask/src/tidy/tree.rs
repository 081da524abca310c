//! The repository's text files, read once. Build output and hidden folders (other than `.ci` and `.cargo`) are left out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

/// Files with these endings are text that we check.
const ENDINGS: [&str; 3] = ["rs", "md", "toml"];

/// A text file.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

/// The package that is no member of the workspace: what it depends on is measured, not used.
const EXCLUDED: &str = "bench-peers";

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree {
            root: root.to_owned(),
            files: Vec::new(),
        };
        tree.walk(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// One of the text files.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is any file, text or not.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    pub(crate) fn with_ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = &'a File> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(ending))
    }

    /// The folders of the workspace's members, relative to the root.
    pub(crate) fn members(&self) -> impl Iterator<Item = &str> {
        self.files
            .iter()
            .filter_map(|file| file.path.strip_suffix("/Cargo.toml"))
            .filter(|folder| *folder != EXCLUDED)
    }

    fn walk(&mut self, folder: &Path, path: &str) -> Result<()> {
        for entry in fs::read_dir(folder)
            .map_err(|error| format!("cannot read {}: {error}", folder.display()))?
        {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}/{name}")
            };
            let kind = entry.file_type()?;
            if kind.is_dir() && is_ours(&entry.path(), &name, &path) {
                self.walk(&entry.path(), &path)?;
            } else if kind.is_file()
                && ENDINGS
                    .iter()
                    .any(|ending| name.ends_with(&format!(".{ending}")))
            {
                let text = fs::read_to_string(entry.path())
                    .map_err(|error| format!("cannot read {path}: {error}"))?;
                self.files.push(File { path, text });
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        Tree {
            root: PathBuf::from("/nonexistent"),
            files: files.collect(),
        }
    }
}

fn is_ours(folder: &Path, name: &str, path: &str) -> bool {
    let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
    // Cargo marks its build folders with this file, whatever they are called.
    let built = folder.join("CACHEDIR.TAG").exists() || path == "docs/book";
    !hidden && !built
}

/// The folders directly in a folder, in order.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)
        .map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut folders: Vec<PathBuf> = entries
        .filter_map(std::result::Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    Ok(folders)
}
