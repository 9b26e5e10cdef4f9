package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Entry is what one signer may have issued by one key.
type Entry struct {
	// Count is how many certificates were covered at most: those that have ended count on, and those that were reserved and
	// not made. Of those that others issued, only some are in it.
	Count int `json:"count"`
	// NotAfter is the latest end of any of them, or later.
	NotAfter time.Time `json:"notAfter"`
}

// Account is what may have been issued by one key.
type Account struct {
	// Signers has an entry for each signer name.
	Signers map[string]Entry `json:"signers"`
	// Sealed means that nothing more is covered.
	Sealed bool `json:"sealed,omitempty"`
}

// SignerNames are those that have an entry, sorted.
func (a Account) SignerNames() []string { return slices.Sorted(maps.Keys(a.Signers)) }

// raise makes the entry of signerName at least that, and says whether it was less.
func (a Account) raise(signerName string, least Entry) bool {
	entry, found := a.Signers[signerName]
	raised := entry
	raised.Count = max(raised.Count, least.Count)
	if least.NotAfter.After(raised.NotAfter) {
		raised.NotAfter = wholeSecond(least.NotAfter)
	}
	a.Signers[signerName] = raised
	return !found || raised.Count != entry.Count || !raised.NotAfter.Equal(entry.NotAfter)
}

// wholeSecond is at or the next whole second, in UTC: as certificates have it, and never before at.
func wholeSecond(at time.Time) time.Time {
	whole := at.UTC().Truncate(time.Second)
	if whole.Before(at) {
		whole = whole.Add(time.Second)
	}
	return whole
}

// accountIn reads the account of keyID from data, and refuses what it would not write back as it was. One that is not
// there is not empty but unknown: ErrNoAccount.
func accountIn(data map[string]string, keyID string) (Account, error) {
	account := Account{}
	text, found := data[keyID]
	err := ErrNoAccount
	if found {
		err = strictly(text, &account)
	}
	if err != nil {
		return Account{}, fmt.Errorf("read the account of key %s: %w", keyID, err)
	}
	if account.Signers == nil {
		account.Signers = map[string]Entry{}
	}
	for signerName, entry := range account.Signers {
		if entry.Count < 0 {
			return Account{}, fmt.Errorf("read the account of key %s: a count of %d for signer %s", keyID, entry.Count, signerName)
		}
	}
	return account, nil
}

// openIn makes the account of keyID in data, unless there is one.
func openIn(data map[string]string, keyID string) (made bool, err error) {
	if _, found := data[keyID]; found {
		return false, nil
	}
	return true, encode(data, keyID, Account{Signers: map[string]Entry{}})
}

func strictly(text string, into any) error {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("something follows the JSON object")
	}
	return nil
}

func decodeAll(data map[string]string) (map[string]Account, error) {
	accounts := map[string]Account{}
	for keyID := range data {
		account, err := accountIn(data, keyID)
		if err != nil {
			return nil, err
		}
		accounts[keyID] = account
	}
	return accounts, nil
}

func encode(data map[string]string, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	data[key] = string(text)
	return nil
}
