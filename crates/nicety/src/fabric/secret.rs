//! Files with a secret: a user's password, or a private key. Only their owner may read them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::exit::{Exit, Failure};

/// Bytes of a new password, before it is written in hexadecimal digits.
const PASSWORD_BYTES: usize = 24;
/// Longest password in a file: etcd takes 72 bytes (bcrypt).
const PASSWORD_MAX: usize = 72;

fn wrong(file: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {why}", file.display()))
}

/// Writes a new file. One that is there is left as it is: an error.
pub fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let done = made.and_then(|mut made| made.write_all(text.as_bytes()).and_then(|()| made.sync_all()));
    done.map_err(|error| wrong(file, error))
}

/// The password in a file, or a new one, which is written there.
pub fn password(file: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let password = text.trim_end_matches('\n');
            if password.is_empty() || password.len() > PASSWORD_MAX || password.contains(char::is_control) {
                let why = format!(
                    "this is no password: 1 to {PASSWORD_MAX} bytes in one line; remove the file for a new one"
                );
                return Err(wrong(file, why));
            }
            Ok(password.to_owned())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut bytes = [0; PASSWORD_BYTES];
            let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
            random.map_err(|error| wrong(Path::new("/dev/urandom"), error))?;
            let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            write(file, &format!("{password}\n"))?;
            Ok(password)
        }
        Err(error) => Err(wrong(file, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_password_is_for_its_owner_alone_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let new = password(&file).unwrap();
        assert!(new.len() == 48 && new.bytes().all(|byte| byte.is_ascii_hexdigit()), "{new}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(password(&file).unwrap(), new);
        assert_ne!(password(&folder.path().join("other")).unwrap(), new);
        assert!(write(&file, "x").unwrap_err().message.contains("File exists"));
    }

    #[test]
    fn a_file_that_has_no_password_is_refused_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for text in ["", "\n", "one\ntwo\n", &"a".repeat(73)] {
            std::fs::write(&file, text).unwrap();
            let why = password(&file).unwrap_err().message;
            assert!(why.contains("this is no password: 1 to 72 bytes in one line"), "{why}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert!(password(folder.path()).unwrap_err().message.contains("Is a directory"));
    }
}
