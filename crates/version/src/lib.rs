//! Which build this is. A crate of its own, so that a new commit rebuilds only what says so.
#![forbid(unsafe_code)]

/// The version of the workspace, such as `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first twelve digits of the commit that it was built from, whatever of the files was changed since; `None` if it was not built in
/// the project's repository.
pub const COMMIT: Option<&str> = option_env!("NICETY_COMMIT");

/// Both for a person: `0.1.0 (6054bc91d2e3)`, or the version alone.
pub const BUILD: &str = env!("NICETY_BUILD");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_in_the_repository_names_its_commit_and_any_other_its_version_alone() {
        match COMMIT {
            Some(commit) => {
                assert!(commit.len() == 12 && commit.bytes().all(|digit| digit.is_ascii_hexdigit()), "{commit}");
                assert_eq!(BUILD, format!("{VERSION} ({commit})"));
            }
            None => assert_eq!(BUILD, VERSION),
        }
    }
}
