// Makes the card that shows an error, with its buttons. `errors.mjs` puts it at the node.

import { copyOnClick } from '../clipboard.mjs'
import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { formatReport } from './message.mjs'

/** Returns the attribute by which tests find a part of the card. */
const makeTestId = (part) => ({ 'data-testid': `paralleldit-error-${part}` })

/** label: says what an icon means; empty for a button with words. */
function makeButton(className, label, attributes, onclick, ...children) {
  const named = label ? { title: label, 'aria-label': label } : {}
  const target = element('button', { type: 'button', class: className, ...named, ...attributes }, ...children)
  if (onclick) target.addEventListener('click', onclick)
  return target
}

/**
 * Makes an alert. kind: see `classifyError`. text: {cause, advice, details}. node: the node's name. onDismiss is called
 * to take the card away, onShow to go to the node, and onRun to run the workflow again.
 */
export function makeErrorCard(kind, text, node, { onDismiss, onShow, onRun }) {
  const title = t(`errors.titles.${kind}`)
  const words = { copy: t('errors.copy'), copied: t('errors.copied') }
  const copyButton = makeButton('paralleldit-error-action', '', makeTestId('copy'), null, words.copy)
  copyOnClick(copyButton, () => formatReport(`${title} (${node})`, text), words)
  const card = element(
    'section',
    { class: 'paralleldit-error', role: 'alert', 'data-testid': 'paralleldit-error', 'data-kind': kind },
    element(
      'header',
      {},
      makeIcon('pi-times-circle'),
      element('strong', {}, title),
      makeButton('paralleldit-error-close', t('errors.dismiss'), makeTestId('dismiss'), onDismiss, makeIcon('pi-times'))
    ),
    element('p', { class: 'paralleldit-error-cause', ...makeTestId('cause') }, text.cause)
  )
  if (text.advice) {
    const label = element('span', { class: 'paralleldit-error-label' }, t('errors.advice'))
    card.append(element('p', { class: 'paralleldit-error-advice', ...makeTestId('advice') }, label, text.advice))
  }
  if (text.details) {
    card.append(
      element(
        'details',
        makeTestId('details'),
        element('summary', {}, t('errors.details')),
        element('pre', { tabindex: 0 }, text.details)
      )
    )
  }
  card.append(
    element(
      'footer',
      {},
      makeButton('paralleldit-error-action paralleldit-error-run', '', makeTestId('run'), onRun, t('errors.run')),
      makeButton('paralleldit-error-action paralleldit-error-node', '', {}, onShow, t('errors.show', { node })),
      copyButton
    )
  )
  card.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return
    event.stopPropagation()
    onDismiss()
  })
  return card
}

function makeIcon(name) {
  return element('i', { class: `pi ${name}`, 'aria-hidden': true })
}
