// The card that shows an error: its elements, and what its buttons do. `errors.mjs` puts it at the node.

import { copiesOnClick } from '../clipboard.mjs'
import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { report } from './message.mjs'

/** What the tests know an element of the card by. */
const testId = (part) => ({ 'data-testid': `paralleldit-error-${part}` })

/** label: what an icon alone does not say; empty for a button with words. */
function button(className, label, attributes, onclick, ...children) {
  const named = label ? { title: label, 'aria-label': label } : {}
  const made = element('button', { type: 'button', class: className, ...named, ...attributes }, ...children)
  if (onclick) made.addEventListener('click', onclick)
  return made
}

/**
 * An alert of that kind. said: {cause, advice, details}. node: its name. onDismiss, onShow: what is called for the
 * buttons that take the card away, and that go to the node.
 */
export function errorCard(kind, said, node, { onDismiss, onShow }) {
  const title = t(`errors.titles.${kind}`)
  const words = { copy: t('errors.copy'), copied: t('errors.copied') }
  const copied = button('paralleldit-error-action', '', testId('copy'), null, words.copy)
  copiesOnClick(copied, () => report(`${title} (${node})`, said), words)
  const card = element(
    'section',
    { class: 'paralleldit-error', role: 'alert', 'data-testid': 'paralleldit-error', 'data-kind': kind },
    element(
      'header',
      {},
      icon('pi-times-circle'),
      element('strong', {}, title),
      button('paralleldit-error-close', t('errors.dismiss'), testId('dismiss'), onDismiss, icon('pi-times'))
    ),
    element('p', { class: 'paralleldit-error-cause', ...testId('cause') }, said.cause)
  )
  if (said.advice) {
    const label = element('span', { class: 'paralleldit-error-label' }, t('errors.advice'))
    card.append(element('p', { class: 'paralleldit-error-advice', ...testId('advice') }, label, said.advice))
  }
  if (said.details) {
    card.append(
      element(
        'details',
        testId('details'),
        element('summary', {}, t('errors.details')),
        element('pre', { tabindex: 0 }, said.details)
      )
    )
  }
  card.append(
    element('footer', {}, button('paralleldit-error-action paralleldit-error-node', '', {}, onShow, node), copied)
  )
  card.querySelector('.paralleldit-error-node').title = t('errors.show')
  card.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return
    event.stopPropagation()
    onDismiss()
  })
  return card
}

function icon(name) {
  return element('i', { class: `pi ${name}`, 'aria-hidden': true })
}
