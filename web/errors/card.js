// The card that shows an error: its elements, and what its buttons do. `errors.js` puts it at the node.

import { t } from '../text.js'
import { report } from './message.js'

const COPIED_MS = 2000

function element(tag, properties, ...children) {
  const made = document.createElement(tag)
  const { data, ...rest } = properties
  Object.assign(made, rest)
  Object.assign(made.dataset, data)
  made.append(...children)
  return made
}

/** label: what an icon alone does not say; empty for a button with words. */
function button(className, label, data, onclick, ...children) {
  const made = element('button', { type: 'button', className, onclick, data }, ...children)
  if (label) Object.assign(made, { title: label, ariaLabel: label })
  return made
}

/**
 * An alert of that kind. said: {cause, advice, details}. node: its name. onDismiss, onShow: what is called for the
 * buttons that take the card away, and that go to the node.
 */
export function errorCard(kind, said, node, { onDismiss, onShow }) {
  const title = t(`errors.titles.${kind}`)
  const copied = button('paralleldit-error-action', '', { testid: 'paralleldit-error-copy' }, copy, t('errors.copy'))
  async function copy() {
    await toClipboard(report(`${title} (${node})`, said))
    copied.textContent = t('errors.copied')
    setTimeout(() => (copied.textContent = t('errors.copy')), COPIED_MS)
  }
  const dismiss = { testid: 'paralleldit-error-dismiss' }
  const card = element(
    'section',
    { className: 'paralleldit-error', role: 'alert', data: { testid: 'paralleldit-error', kind } },
    element(
      'header',
      {},
      icon('pi-times-circle'),
      element('strong', {}, title),
      button('paralleldit-error-close', t('errors.dismiss'), dismiss, onDismiss, icon('pi-times')),
    ),
    element('p', { className: 'paralleldit-error-cause', data: { testid: 'paralleldit-error-cause' } }, said.cause),
  )
  if (said.advice) {
    const label = element('span', { className: 'paralleldit-error-label' }, t('errors.advice'))
    const advice = { className: 'paralleldit-error-advice', data: { testid: 'paralleldit-error-advice' } }
    card.append(element('p', advice, label, said.advice))
  }
  if (said.details) {
    card.append(
      element(
        'details',
        { data: { testid: 'paralleldit-error-details' } },
        element('summary', {}, t('errors.details')),
        element('pre', { tabIndex: 0 }, said.details),
      ),
    )
  }
  card.append(
    element('footer', {}, button('paralleldit-error-action paralleldit-error-node', '', {}, onShow, node), copied),
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
  const made = element('i', { className: `pi ${name}` })
  made.ariaHidden = 'true'
  return made
}

/** Also on a page that a browser takes for insecure, which ComfyUI on another machine is. */
async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    const area = element('textarea', { value: text, className: 'paralleldit-error-copying' })
    const focused = document.activeElement
    document.body.append(area)
    area.select()
    document.execCommand('copy')
    area.remove()
    focused?.focus()
  }
}
